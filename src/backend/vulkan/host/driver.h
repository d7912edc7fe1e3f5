/* driver.h - Vulkan, found at run time: one program with and without it. */
#ifndef BACKEND_VULKAN_HOST_DRIVER_H
#define BACKEND_VULKAN_HOST_DRIVER_H

#define VK_NO_PROTOTYPES
#include <stdbool.h>
#include <vulkan/vulkan.h>

#include "base/err.h"

/* Every function of an instance that we use: VULKAN(its member in `vk`, its name). */
#define VULKAN_FUNCTIONS                                                                           \
    VULKAN(list_devices, vkEnumeratePhysicalDevices)                                               \
    VULKAN(list_device_extensions, vkEnumerateDeviceExtensionProperties)                           \
    VULKAN(device_properties, vkGetPhysicalDeviceProperties2)                                      \
    VULKAN(device_features, vkGetPhysicalDeviceFeatures2)                                          \
    VULKAN(device_memory, vkGetPhysicalDeviceMemoryProperties2)                                    \
    VULKAN(queue_families, vkGetPhysicalDeviceQueueFamilyProperties)                               \
    VULKAN(create_device, vkCreateDevice)                                                          \
    VULKAN(destroy_device, vkDestroyDevice)                                                        \
    VULKAN(get_queue, vkGetDeviceQueue)                                                            \
    VULKAN(queue_submit, vkQueueSubmit)                                                            \
    VULKAN(allocate_memory, vkAllocateMemory)                                                      \
    VULKAN(free_memory, vkFreeMemory)                                                              \
    VULKAN(map_memory, vkMapMemory)                                                                \
    VULKAN(create_buffer, vkCreateBuffer)                                                          \
    VULKAN(destroy_buffer, vkDestroyBuffer)                                                        \
    VULKAN(buffer_needs, vkGetBufferMemoryRequirements)                                            \
    VULKAN(bind_buffer, vkBindBufferMemory)                                                        \
    VULKAN(create_semaphore, vkCreateSemaphore)                                                    \
    VULKAN(destroy_semaphore, vkDestroySemaphore)                                                  \
    VULKAN(wait_semaphores, vkWaitSemaphores)                                                      \
    VULKAN(semaphore_value, vkGetSemaphoreCounterValue)                                            \
    VULKAN(create_shader, vkCreateShaderModule)                                                    \
    VULKAN(destroy_shader, vkDestroyShaderModule)                                                  \
    VULKAN(create_cache, vkCreatePipelineCache)                                                    \
    VULKAN(destroy_cache, vkDestroyPipelineCache)                                                  \
    VULKAN(cache_data, vkGetPipelineCacheData)                                                     \
    VULKAN(create_pipelines, vkCreateComputePipelines)                                             \
    VULKAN(destroy_pipeline, vkDestroyPipeline)                                                    \
    VULKAN(create_pipeline_layout, vkCreatePipelineLayout)                                         \
    VULKAN(destroy_pipeline_layout, vkDestroyPipelineLayout)                                       \
    VULKAN(create_set_layout, vkCreateDescriptorSetLayout)                                         \
    VULKAN(destroy_set_layout, vkDestroyDescriptorSetLayout)                                       \
    VULKAN(create_set_pool, vkCreateDescriptorPool)                                                \
    VULKAN(destroy_set_pool, vkDestroyDescriptorPool)                                              \
    VULKAN(allocate_sets, vkAllocateDescriptorSets)                                                \
    VULKAN(update_sets, vkUpdateDescriptorSets)                                                    \
    VULKAN(create_command_pool, vkCreateCommandPool)                                               \
    VULKAN(destroy_command_pool, vkDestroyCommandPool)                                             \
    VULKAN(allocate_commands, vkAllocateCommandBuffers)                                            \
    VULKAN(begin_commands, vkBeginCommandBuffer)                                                   \
    VULKAN(end_commands, vkEndCommandBuffer)                                                       \
    VULKAN(create_queries, vkCreateQueryPool)                                                      \
    VULKAN(destroy_queries, vkDestroyQueryPool)                                                    \
    VULKAN(query_results, vkGetQueryPoolResults)                                                   \
    VULKAN(cmd_bind_pipeline, vkCmdBindPipeline)                                                   \
    VULKAN(cmd_bind_sets, vkCmdBindDescriptorSets)                                                 \
    VULKAN(cmd_push, vkCmdPushConstants)                                                           \
    VULKAN(cmd_dispatch, vkCmdDispatch)                                                            \
    VULKAN(cmd_barrier, vkCmdPipelineBarrier)                                                      \
    VULKAN(cmd_copy, vkCmdCopyBuffer)                                                              \
    VULKAN(cmd_fill, vkCmdFillBuffer)                                                              \
    VULKAN(cmd_reset_queries, vkCmdResetQueryPool)                                                 \
    VULKAN(cmd_time, vkCmdWriteTimestamp)

struct vulkan_driver {
    VkInstance instance;
    PFN_vkGetInstanceProcAddr find;
    bool is_validating;
#define VULKAN(member, name) PFN_##name member;
    VULKAN_FUNCTIONS
#undef VULKAN
    PFN_vkGetMemoryHostPointerPropertiesEXT host_pointer_properties; /* NULL: no driver has it */
    PFN_vkGetPipelineExecutableStatisticsKHR pipeline_statistics;    /* the same */
};
extern struct vulkan_driver vk;

/* Loads the library and makes the instance, the first time. What is missing is said in one line.
 * SLUICE_VULKAN_VALIDATE=1: with the validation layer, and its checks of synchronization. */
int vulkan_driver_open(struct err *err);

/* How often the validation layer has complained so far; each time it is a line of the log. */
uint32_t vulkan_validation_messages(void);

/* An error with what was done, when `result` is one. */
int vulkan_check(VkResult result, const char *what, struct err *err);

#endif
