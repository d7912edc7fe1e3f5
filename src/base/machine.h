/* machine.h - the machines that Sluice is written for. Nothing is included: the Makefile compiles
 * this file alone before all others, so that another machine gets one line and not hundreds. */
#ifndef BASE_MACHINE_H
#define BASE_MACHINE_H

#if __SIZEOF_POINTER__ != 8
#error "Sluice needs a 64-bit machine: weights and caches are mapped whole, and sizes are size_t"
#elif __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Sluice needs a little-endian machine: files are used as they are"
#endif

#endif
