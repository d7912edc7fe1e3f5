/* folders.h - where a user's files are kept. */
#ifndef BASE_FOLDERS_H
#define BASE_FOLDERS_H

/* Creates the missing folders of a path, up to the last slash, for this user alone. Failures show
 * when a file is opened there. */
void folders_make(char *path);

/* Who else may change what is in an open folder, in words; NULL: nobody but root. */
const char *folders_writer(int fd);

/* The path of a file of Sluice's own, whose folders are made: $variable/sluice/name by the XDG
 * specification, or ~/below/sluice/name. NULL: there is no such folder. The caller frees it. */
char *folders_user_file(const char *variable, const char *below, const char *name);

#endif
