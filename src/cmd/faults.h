/* faults.h - signals that end the program: nothing half-written stays, and a model file truncated
 * while it is mapped gives a line instead of a bare SIGBUS. */
#ifndef CMD_FAULTS_H
#define CMD_FAULTS_H

/* Handles SIGBUS, SIGPIPE, SIGQUIT and SIGXCPU from now on, each only where it is not ignored. A
 * file beyond the size limit is a failed write, not a SIGXFSZ. SIGINT, SIGTERM and SIGHUP are not
 * touched here. */
void faults_install(void);

/* A path to unlink with the temporary files: a socket. Borrowed; NULL: none. */
void faults_drop(const char *path);
/* Called by a signal's handler: unlinks all of those. */
void faults_clean(void);
/* The same, then lets the signal take its default effect. */
void faults_end_by(int number);

#endif
