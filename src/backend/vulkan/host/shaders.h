/* shaders.h - the compiled shaders, embedded; tools/shaders.sh makes the table from
 * shaders/shaders.list. */
#ifndef BACKEND_VULKAN_HOST_SHADERS_H
#define BACKEND_VULKAN_HOST_SHADERS_H

#include <stdint.h>

struct vulkan_shader {
    const char *name;      /* NULL after the last */
    const uint32_t *words; /* SPIR-V */
    const uint32_t *end;
};
extern const struct vulkan_shader vulkan_shaders[];
extern const uint32_t vulkan_n_shaders;

#endif
