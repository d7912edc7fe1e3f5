/* folders.h - where a user's files are kept. */
#ifndef BASE_FOLDERS_H
#define BASE_FOLDERS_H

/* Makes the folders of a path, for this user alone, as far as they are not there; what is after the
 * last slash is not made. One that cannot be made shows when something is opened in it. */
void folders_make(char *path);

/* The path of a file of Sluice's own, whose folders are made: $variable/sluice/name by the XDG
 * specification, or ~/below/sluice/name. NULL: there is no such folder. The caller frees it. */
char *folders_user_file(const char *variable, const char *below, const char *name);

#endif
