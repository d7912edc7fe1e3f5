/* host.h - between the files of host/; ops see vulkan.h alone. */
#ifndef BACKEND_VULKAN_HOST_HOST_H
#define BACKEND_VULKAN_HOST_HOST_H

#include <pthread.h>

#include "backend/vulkan/host/cache.h"
#include "backend/vulkan/host/shaders.h"
#include "backend/vulkan/host/vulkan.h"
#include "plan/io.h"

/* Bytes [start, start + bytes) of a region. */
struct vulkan_buffer {
    VkBuffer buffer;
    VkDeviceMemory memory;
    uint64_t start, bytes;
    uint8_t *host; /* mapped; NULL: not */
};

struct vulkan_region {
    struct vulkan_buffer *list; /* by start */
    uint32_t n;
    size_t capacity;
    uint64_t bytes;
};

/* A weight, which is [at, at + bytes) of VULKAN_WEIGHTS. */
struct vulkan_weight {
    struct operand operand; /* the first member: weight_list.h */
    uint64_t at, bytes, row_bytes;
    bool is_imported, has_planes; /* VULKAN_Q6_K_PLANES */
};

/* Of a matrix, or of a stack of them. */
static inline uint64_t vulkan_all_rows(const struct operand *o) {
    return (uint64_t)o->dims[1] * o->dims[2] * o->dims[3];
}

struct vulkan_pipeline {
    const struct vulkan_shader *shader;
    uint32_t constants[VULKAN_MAX_CONSTANTS], n_constants, n_binds;
    bool needs_full_subgroups;
    VkShaderModule module;
    VkPipeline pipeline;              /* NULL: not made yet */
    uint32_t registers, shared, code; /* where the driver tells them */
};

struct vulkan_set {
    struct vulkan_bind binds[VULKAN_MAX_BINDS];
    uint32_t n_binds; /* 0: an empty place of the table */
    VkDescriptorSet set;
};

/* A dispatch of a recording. */
struct vulkan_node {
    const struct vulkan_pipeline *pipeline;
    VkDescriptorSet set;
    uint32_t groups[3];
    struct vulkan_bind binds[VULKAN_MAX_BINDS];
    uint32_t n_binds;
    uint32_t push[sizeof(struct vulkan_io_at) / 4 + VULKAN_PUSH_WORDS], push_bytes;
    uint32_t op;
    bool has_stage, resets_stages;
};

struct vulkan_recording {
    const struct plan *plan;
    bool is_greedy; /* as in vulkan_recorder */
    struct vulkan_node *nodes;
    uint32_t n_nodes, n_barriers;
    size_t capacity;                    /* of nodes */
    VkCommandBuffer step, burst;        /* burst NULL: not for this plan */
    double expected, expected_of_burst; /* seconds that they usually take; 0: not known yet */
};

enum { QUEUE_COMMANDS = 4, STAGING_BYTES = 16 << 20, ZERO_BYTES = 256 };

/* A queue and what one thread needs to copy through it. */
struct vulkan_queue {
    VkQueue queue;
    VkCommandPool pool;
    VkCommandBuffer commands[QUEUE_COMMANDS];
    uint64_t values[QUEUE_COMMANDS]; /* of the timeline: when each is free again */
    uint32_t next;
    VkSemaphore timeline;
    uint64_t submitted; /* the timeline's value when all is done */
    struct vulkan_buffer staging;
    struct vulkan_buffer zeros; /* ZERO_BYTES of them */
};

struct vulkan_table {
    struct operand freqs;
    uint32_t n_high;
    uint64_t at;
};

enum { VULKAN_MAX_TABLES = 8, VULKAN_GRID_ENTRIES = 2048 + 1024 + 512 + 512 + 256 + 256 };

/* A device that is open, and what is made on it once for all backends of this process: making a
 * pipeline takes milliseconds, of some drivers a hundred. */
struct vulkan_device {
    struct vulkan_device *next;
    VkPhysicalDevice physical;
    VkDevice device;
    uint32_t n_users;
    atomic_bool is_lost;
    bool has_full_subgroups; /* shaders may ask for them; other devices mostly have them anyway */
    bool has_robustness;     /* of pipelines, which can be turned off */
    bool has_statistics;     /* of pipelines, and they are wanted */
    bool converts_halves;    /* by half.glsl: the driver's unpackHalf2x16 is wrong */
    pthread_mutex_t submitting; /* to its queues */
    pthread_mutex_t making;     /* what is below */
    VkPipelineCache cache;
    struct cache_key cache_key;
    char *cache_path;        /* NULL: it is not kept */
    size_t cache_bytes;      /* of that file's */
    VkShaderModule *modules; /* one a row of vulkan_shaders, made when first used */
    VkDescriptorSetLayout set_layouts[VULKAN_MAX_BINDS + 1];
    VkPipelineLayout layouts[VULKAN_MAX_BINDS + 1];
    struct vulkan_pipeline **pipelines;
    uint32_t n_pipelines;
    size_t pipeline_capacity;
};

struct backend {
    VkPhysicalDevice physical;
    struct vulkan_device *dev;
    VkDevice device; /* on->device */
    char name[256];
    bool is_cpu; /* a driver that runs on the processor */
    struct vulkan_features can;
    bool has_import, has_budget, has_subgroups;
    uint64_t import_align, offset_align, max_allocation;
    uint32_t max_groups[3];
    uint32_t family, n_queues, time_bits;
    double tick; /* seconds of a time stamp's unit */
    VkPhysicalDeviceMemoryProperties memory;
    bool exact;

    struct vulkan_weight *weight_list;
    uint32_t n_weights;
    uint64_t mapped; /* bytes of WEIGHTS that the host maps from files */
    struct vulkan_region regions[VULKAN_MEMORIES];
    uint64_t imported; /* bytes of weights that are read where the host mapped them */
    struct vulkan_table tables[VULKAN_MAX_TABLES];
    uint32_t n_tables;
    uint64_t table_bytes, work_bytes;

    struct vulkan_queue steps, copies; /* copies: of STATE to the host while steps run */
    uint64_t fences[BACKEND_FENCES];   /* of the steps' timeline */

    VkDescriptorPool *pools;
    uint32_t n_pools, pool_left; /* sets that the last one has left */
    struct vulkan_set *sets;     /* a hash table */
    uint32_t n_sets, set_capacity;

    struct vulkan_recording *recordings; /* one a plan */
    struct vulkan_recording *greedy;     /* the same for greedy steps; not of all plans */
    uint32_t n_recordings;
    struct backend_counters count;
    const struct plan *running; /* of the step that was submitted last, or of the burst */
    bool is_burst;
    double *expected, submitted_at;
};

/* open.c */
/* An error if the device was lost earlier. Every call of the backend begins with it. */
int vulkan_enter(const struct backend *b, struct err *err);
/* vulkan_check for calls that may report a lost device. */
int vulkan_done(struct backend *b, VkResult result, const char *what, struct err *err);

/* device.c */
/* Opens the device of that number, or shares the one that another backend has open; fills in what
 * is known of it. */
int vulkan_take_device(struct backend *b, int number, struct err *err);
void vulkan_leave_device(struct backend *b);
/* As backend.h has them. */
int vulkan_available(struct backend *b, uint64_t *bytes, struct err *err);
bool vulkan_device_line(int i, char *out, size_t size);
bool vulkan_is_worth_taking(void);

/* memory.c */
enum vulkan_memory_kind {
    VULKAN_ON_DEVICE,
    VULKAN_ON_HOST, /* mapped, and read by the host */
    VULKAN_ON_BOTH, /* mapped, and the device's own where it has such: the host only writes it */
};
int vulkan_make_buffer(struct backend *b, struct vulkan_buffer *out, uint64_t bytes,
                       enum vulkan_memory_kind kind, const char *what, struct err *err);
/* The same over the host's memory, whose address and size are multiples of import_align. An error
 * is no fault: the driver does not want it. */
int vulkan_import_buffer(struct backend *b, struct vulkan_buffer *out, const uint8_t *host,
                         uint64_t bytes, struct err *err);
void vulkan_free_buffer(struct backend *b, struct vulkan_buffer *buffer);
int vulkan_region_add(struct vulkan_region *r, const struct vulkan_buffer *buffer, struct err *err);
void vulkan_region_free(struct backend *b, struct vulkan_region *r);
/* The buffer with that byte. */
const struct vulkan_buffer *vulkan_buffer_at(const struct vulkan_region *r, uint64_t offset);

int vulkan_queue_open(struct backend *b, struct vulkan_queue *q, uint32_t queue, struct err *err);
void vulkan_queue_close(struct backend *b, struct vulkan_queue *q);
int vulkan_queue_begin(struct backend *b, struct vulkan_queue *q, VkCommandBuffer *out,
                       struct err *err);
/* Ends and submits the commands of vulkan_queue_begin, after value `after` of the timeline `other`,
 * if there is one. */
int vulkan_queue_end(struct backend *b, struct vulkan_queue *q, VkSemaphore other, uint64_t after,
                     struct err *err);
int vulkan_queue_submit(struct backend *b, struct vulkan_queue *q, VkCommandBuffer commands,
                        VkSemaphore other, uint64_t after, struct err *err);
/* Until all that was submitted is done. */
int vulkan_queue_wait(struct backend *b, struct vulkan_queue *q, struct err *err);
/* Everything before is done and seen by everything after. */
void vulkan_full_barrier(VkCommandBuffer commands);

/* load.c */
int vulkan_place_weights(struct backend *b, struct plan *const *plans, uint32_t n_plans,
                         struct err *err);
const struct vulkan_weight *vulkan_find_weight(const struct backend *b, const struct operand *o);
/* Whether the driver takes pages of mapped files; tried once. */
bool vulkan_can_import(struct backend *b);
/* Bytes of weights that will be read where they are mapped. */
uint64_t vulkan_importable(const struct backend *b);
int vulkan_make_weights(struct backend *b, struct backend_weights weights, struct err *err);
int vulkan_upload(struct backend *b, struct backend_weights weights,
                  void (*progress)(void *user, uint64_t done, uint64_t total), void *user,
                  struct err *err);
int vulkan_fill_tables(struct backend *b, struct backend_weights weights, struct err *err);

/* pipelines.c */
int vulkan_open_pipelines(struct vulkan_device *d, struct err *err);
void vulkan_close_pipelines(struct vulkan_device *d);
void vulkan_free_sets(struct backend *b);
/* A pipeline that is not there yet is noted; vulkan_make_pipelines makes those that were. */
int vulkan_make_pipelines(struct backend *b, struct err *err);
int vulkan_find_pipeline(struct backend *b, const struct vulkan_dispatch *d,
                         const struct vulkan_pipeline **out, struct err *err);
int vulkan_find_set(struct backend *b, const struct vulkan_bind *binds, uint32_t n_binds,
                    VkDescriptorSet *out, struct err *err);

/* record.c */
int vulkan_count(struct backend *b, struct plan *const *plans, uint32_t n_plans, struct err *err);
int vulkan_record(struct backend *b, struct plan *const *plans, uint32_t n_plans, struct err *err);
/* has_stages: a stage may follow another without a barrier (stage.glsl). */
void vulkan_encode(const struct backend *b, VkCommandBuffer commands,
                   const struct vulkan_node *nodes, uint32_t n, bool has_stages,
                   uint32_t *n_barriers);

/* step.c, state.c and limits.c: as backend.h has them. */
int vulkan_submit(struct backend *b, uint32_t plan, struct err *err);
bool vulkan_has_burst(const struct backend *b, uint32_t plan);
int vulkan_submit_burst(struct backend *b, uint32_t plan, struct err *err);
int vulkan_wait(struct backend *b, struct err *err);
int vulkan_time_ops(struct backend *b, uint32_t plan, double *seconds, struct err *err);
int vulkan_run_op(struct backend *b, uint32_t plan, uint32_t op, struct err *err);
bool vulkan_op_kernel(const struct backend *b, uint32_t plan, uint32_t op, uint32_t i,
                      struct backend_kernel *out);
int vulkan_read_state(struct backend *b, uint64_t offset, uint64_t bytes, void *to,
                      struct err *err);
int vulkan_write_state(struct backend *b, uint64_t offset, uint64_t bytes, const void *from,
                       struct err *err);
int vulkan_move_state(struct backend *b, const struct backend_move *list, uint32_t n, bool is_in,
                      struct err *err);
int vulkan_copy_state(struct backend *b, const struct backend_copy *list, uint32_t n,
                      struct err *err);
int vulkan_fence(struct backend *b, uint32_t number, struct err *err);
int vulkan_read_at_fence(struct backend *b, uint32_t fence, const struct backend_move *list,
                         uint32_t n, struct err *err);
int vulkan_peek(struct backend *b, enum region region, uint64_t offset, uint64_t bytes, void *to,
                struct err *err);
int vulkan_poke(struct backend *b, enum region region, uint64_t offset, uint64_t bytes,
                const void *from, struct err *err);
/* Bytes of a region to or from the host, through a queue's staging buffer. */
int vulkan_transfer(struct backend *b, struct vulkan_queue *q, const struct vulkan_region *r,
                    const struct backend_move *list, uint32_t n, bool is_in, struct err *err);
int vulkan_zero(struct backend *b, const struct vulkan_region *r, struct err *err);
int vulkan_bandwidth(struct backend *b, double *bytes_per_second, struct err *err);

#endif
