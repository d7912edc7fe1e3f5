/* cache.h - the driver's pipeline cache, kept on disk between processes: pipelines that a driver
 * compiled once need not be compiled again.
 *
 * (1) A file is one device's, and holds what one driver made for it: another driver, or another
 *     version, ignores it and replaces it.
 * (2) What cannot be read, is cut or has a wrong checksum counts as not there, and is replaced: a
 *     file of that name, in that folder, is this program's. Nothing here fails.
 * (3) Files are written whole or not at all. */
#ifndef BACKEND_VULKAN_HOST_CACHE_H
#define BACKEND_VULKAN_HOST_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* For whom the bytes are. */
struct cache_key {
    uint8_t device[16], driver[16], pipelines[16]; /* UUIDs */
    uint32_t vendor_id, device_id, driver_version, zero;
};

/* The file of a device: in $SLUICE_VULKAN_CACHE, $XDG_CACHE_HOME/sluice or ~/.cache/sluice, which
 * is made. NULL: none is wanted (SLUICE_VULKAN_CACHE is empty), or there is no such folder. The
 * caller frees it. */
char *cache_path(const struct cache_key *key);

/* The bytes that cache_write was given for the same key; NULL: there are none. The caller frees
 * them. */
void *cache_read(const char *path, const struct cache_key *key, size_t *n);
bool cache_write(const char *path, const struct cache_key *key, const void *bytes, size_t n);

#endif
