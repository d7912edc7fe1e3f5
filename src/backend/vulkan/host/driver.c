/* driver.c - see driver.h. */
#include "backend/vulkan/host/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

struct vulkan_driver vk;

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint n_messages;

static const struct {
    const char *name;
    size_t at;
} functions[] = {
#define VULKAN(member, name) {#name, offsetof(struct vulkan_driver, member)},
    VULKAN_FUNCTIONS
#undef VULKAN
};

/* ---- validation --------------------------------------------------------------------------- */

uint32_t vulkan_validation_messages(void) {
    return atomic_load(&n_messages);
}

static VkBool32 VKAPI_PTR on_message(VkDebugUtilsMessageSeverityFlagBitsEXT severity,
                                     VkDebugUtilsMessageTypeFlagsEXT types,
                                     const VkDebugUtilsMessengerCallbackDataEXT *data, void *user) {
    (void)severity, (void)types, (void)user;
    atomic_fetch_add(&n_messages, 1);
    log_line(LOG_WARN, "Vulkan validation: %s", data->pMessage);
    return VK_FALSE;
}

static bool wants_validation(void) {
    const char *wanted = getenv("SLUICE_VULKAN_VALIDATE");
    return wanted && strcmp(wanted, "1") == 0;
}

static const VkDebugUtilsMessengerCreateInfoEXT messenger = {
    .sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
    .messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT |
                       VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
    .messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT,
    .pfnUserCallback = on_message,
};

static void log_messages(void) {
    VkDebugUtilsMessengerEXT ignored;
    PFN_vkCreateDebugUtilsMessengerEXT create =
        (PFN_vkCreateDebugUtilsMessengerEXT)vk.find(vk.instance, "vkCreateDebugUtilsMessengerEXT");
    if (create)
        create(vk.instance, &messenger, NULL, &ignored);
}

/* ---- the library and the instance --------------------------------------------------------- */

static bool has_extension(const char *name) {
    static VkExtensionProperties list[64];
    uint32_t n = sizeof list / sizeof *list;
    PFN_vkEnumerateInstanceExtensionProperties enumerate =
        (PFN_vkEnumerateInstanceExtensionProperties)vk.find(
            NULL, "vkEnumerateInstanceExtensionProperties");
    if (!enumerate || enumerate(NULL, &n, list) < 0)
        return false;
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(list[i].extensionName, name) == 0)
            return true;
    return false;
}

static int make_instance(struct err *err) {
    static const VkValidationFeatureEnableEXT enabled[] = {
        VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT};
    const VkValidationFeaturesEXT validation = {
        .sType = VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT,
        .enabledValidationFeatureCount = 1,
        .pEnabledValidationFeatures = enabled,
    };
    const char *extensions[2], *layer = "VK_LAYER_KHRONOS_validation";
    VkApplicationInfo about = {
        .sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
        .pApplicationName = "sluice",
        .apiVersion = VK_API_VERSION_1_2,
    };
    VkInstanceCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
        .pApplicationInfo = &about,
        .ppEnabledExtensionNames = extensions,
    };
    if (has_extension(VK_KHR_PORTABILITY_ENUMERATION_EXTENSION_NAME)) { /* MoltenVK */
        extensions[info.enabledExtensionCount++] = VK_KHR_PORTABILITY_ENUMERATION_EXTENSION_NAME;
        info.flags |= VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR;
    }
    if (wants_validation()) {
        info.pNext = &validation;
        info.enabledLayerCount = 1;
        info.ppEnabledLayerNames = &layer;
        extensions[info.enabledExtensionCount++] = VK_EXT_DEBUG_UTILS_EXTENSION_NAME;
    }
    PFN_vkCreateInstance create = (PFN_vkCreateInstance)vk.find(NULL, "vkCreateInstance");
    if (!create)
        return err_set(err, SLUICE_ERR_DEVICE, "the Vulkan library has no vkCreateInstance");
    return vulkan_check(create(&info, NULL, &vk.instance), "starting Vulkan", err);
}

static void *open_library(void) {
    static const char *const names[] = {"libvulkan.so.1", "libvulkan.1.dylib", "libMoltenVK.dylib"};
    void *library = NULL;
    for (size_t i = 0; !library && i < sizeof names / sizeof *names; i++)
        library = dlopen(names[i], RTLD_NOW);
    return library;
}

static int start(struct err *err) {
    void *library = open_library();
    if (!library)
        return err_set(err, SLUICE_ERR_DEVICE, "no Vulkan: libvulkan.so.1 is not on this machine");
    vk.find = (PFN_vkGetInstanceProcAddr)dlsym(library, "vkGetInstanceProcAddr");
    int status =
        vk.find ? make_instance(err)
                : err_set(err, SLUICE_ERR_DEVICE, "libvulkan.so.1 has no vkGetInstanceProcAddr");
    for (size_t i = 0; !status && i < sizeof functions / sizeof *functions; i++) {
        PFN_vkVoidFunction f = vk.find(vk.instance, functions[i].name);
        if (!f)
            status =
                err_set(err, SLUICE_ERR_DEVICE, "the Vulkan library has no %s, expected Vulkan 1.2",
                        functions[i].name);
        memcpy((char *)&vk + functions[i].at, &f, sizeof f);
    }
    if (status)
        return status; /* the library stays: drivers leave threads and handlers that need it */
    vk.host_pointer_properties = (PFN_vkGetMemoryHostPointerPropertiesEXT)vk.find(
        vk.instance, "vkGetMemoryHostPointerPropertiesEXT");
    vk.pipeline_statistics = (PFN_vkGetPipelineExecutableStatisticsKHR)vk.find(
        vk.instance, "vkGetPipelineExecutableStatisticsKHR");
    vk.is_validating = wants_validation();
    if (vk.is_validating)
        log_messages();
    return SLUICE_OK;
}

/* What failed once is not tried again: nothing of it can be undone. */
int vulkan_driver_open(struct err *err) {
    static bool is_tried;
    static int status;
    static struct err why;
    pthread_mutex_lock(&opening);
    if (!is_tried)
        status = start(&why);
    is_tried = true;
    if (status)
        *err = why;
    pthread_mutex_unlock(&opening);
    return status;
}

int vulkan_check(VkResult result, const char *what, struct err *err) {
    static const struct {
        VkResult result;
        enum sluice_status status;
        const char *text;
    } known[] = {
        {VK_ERROR_OUT_OF_HOST_MEMORY, SLUICE_ERR_MEMORY, "the host is out of memory"},
        {VK_ERROR_OUT_OF_DEVICE_MEMORY, SLUICE_ERR_MEMORY, "the device is out of memory"},
        {VK_ERROR_TOO_MANY_OBJECTS, SLUICE_ERR_MEMORY, "the device allows no more allocations"},
        {VK_ERROR_INVALID_EXTERNAL_HANDLE, SLUICE_ERR_UNSUPPORTED, "the driver refuses the memory"},
        {VK_ERROR_DEVICE_LOST, SLUICE_ERR_DEVICE, "the device was lost"},
        {VK_TIMEOUT, SLUICE_ERR_DEVICE, "the device did not answer in time"},
        {VK_ERROR_LAYER_NOT_PRESENT, SLUICE_ERR_DEVICE,
         "the validation layer (SLUICE_VULKAN_VALIDATE) is not installed"},
        {VK_ERROR_INCOMPATIBLE_DRIVER, SLUICE_ERR_DEVICE, "no driver for Vulkan was found"},
    };
    if (result == VK_SUCCESS)
        return SLUICE_OK;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].result == result)
            return err_set(err, known[i].status, "%s: %s (Vulkan error %d)", what, known[i].text,
                           result);
    return err_set(err, SLUICE_ERR_DEVICE, "%s: Vulkan error %d", what, result);
}
