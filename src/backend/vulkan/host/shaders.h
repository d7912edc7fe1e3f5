/* shaders.h - the compiled shaders, embedded; tools/shaders.sh makes the table from
 * shaders/shaders.list. */
#ifndef BACKEND_VULKAN_HOST_SHADERS_H
#define BACKEND_VULKAN_HOST_SHADERS_H

#include <stdbool.h>
#include <stdint.h>

#include "quant/quant.h"

struct vulkan_shader {
    const char *name;      /* NULL after the last */
    const uint32_t *words; /* SPIR-V */
    const uint32_t *end;
};
extern const struct vulkan_shader vulkan_shaders[];
extern const uint32_t vulkan_n_shaders;
extern const bool vulkan_has_type[DT_COUNT]; /* of weights: those of shaders/types.glsl */

#endif
