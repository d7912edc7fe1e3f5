/* sluice.h - the public interface of Sluice.
 *
 * The only header a program needs.  Every call that can fail returns a status: SLUICE_OK (0) or
 * one of the negative codes below. */
#ifndef SLUICE_H
#define SLUICE_H

#ifdef __cplusplus
extern "C" {
#endif

enum sluice_status {
    SLUICE_OK = 0,
    SLUICE_ERR_ARGUMENT = -1,    /* a value the caller gave makes no sense */
    SLUICE_ERR_IO = -2,          /* a file could not be opened, read or written */
    SLUICE_ERR_FORMAT = -3,      /* a file is damaged or is not what it claims to be */
    SLUICE_ERR_UNSUPPORTED = -4, /* well-formed, but nothing here can run it */
    SLUICE_ERR_MEMORY = -5,      /* memory ran out */
    SLUICE_ERR_DEVICE = -6,      /* an accelerator failed */
};

/* The version this library was built from, e.g. "0.1.0-12-gabc1234". Static; never NULL. */
const char *sluice_version(void);

/* What a status means, in two or three words. Static; never NULL. */
const char *sluice_status_text(int status);

#ifdef __cplusplus
}
#endif
#endif
