/* A minimal but complete device plug-in, for a vendor that hetcomm does not support.
 *
 *     cc -std=c99 -shared -fPIC device_plugin.c -o libexample.so $(pkg-config --cflags hetcomm)
 *     HETCOMM_DEVICE_PLUGINS=./libexample.so HETCOMM_DEVICES=example hetcomm_info
 *
 * The "accelerator" is host memory that is addressed by handles, like OpenCL buffers. Its copies
 * are complete when the call returns, so it needs no streams or events. A real plug-in calls its
 * vendor's library instead of malloc() and memcpy(). If the vendor's copies are asynchronous, it
 * also sets stream_create and the other entries for streams and events. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hetcomm/device_plugin.h>

/* The handle of a slot is FIRST_HANDLE plus the slot's index times STEP. CPU addresses are never in
 * this range. */
#define FIRST_HANDLE ((uint64_t)0xe5 << 56)
#define STEP ((uint64_t)1 << 40)
#define MOST_ALLOCATIONS 4096

typedef struct example_device {
  pthread_mutex_t lock;
  unsigned char* bytes[MOST_ALLOCATIONS]; /* NULL: the slot is free */
  uint64_t sizes[MOST_ALLOCATIONS];
} example_device_t;

static void destroy(void* device) {
  example_device_t* const own = device;
  for (int slot = 0; slot < MOST_ALLOCATIONS; ++slot) free(own->bytes[slot]);
  pthread_mutex_destroy(&own->lock);
  free(own);
}

static const char* name(void* device) {
  (void)device;
  return "example: host memory with handles for names";
}

static hetcomm_status_t allocate(void* device, uint64_t size_bytes, void** out_address) {
  example_device_t* const own = device;
  hetcomm_status_t status = HETCOMM_OUT_OF_RESOURCES;
  if (out_address == NULL) return HETCOMM_INVALID_ARGUMENT;
  if (size_bytes >= STEP) return HETCOMM_OUT_OF_MEMORY;
  pthread_mutex_lock(&own->lock);
  for (int slot = 0; slot < MOST_ALLOCATIONS; ++slot) {
    if (own->bytes[slot] != NULL) continue;
    own->bytes[slot] = malloc(size_bytes > 0 ? (size_t)size_bytes : 1);
    own->sizes[slot] = size_bytes;
    status = own->bytes[slot] != NULL ? HETCOMM_OK : HETCOMM_OUT_OF_MEMORY;
    if (status == HETCOMM_OK) {
      *out_address = (void*)(uintptr_t)(FIRST_HANDLE + (uint64_t)slot * STEP);
    }
    break;
  }
  pthread_mutex_unlock(&own->lock);
  return status;
}

/* Returns the slot that contains |address|, or -1 if there is none. Called with the lock held. */
static int slot_of(const example_device_t* own, const void* address) {
  const uint64_t handle = (uint64_t)(uintptr_t)address;
  const uint64_t slot = (handle - FIRST_HANDLE) / STEP;
  if (handle < FIRST_HANDLE || slot >= MOST_ALLOCATIONS || own->bytes[slot] == NULL) return -1;
  return (int)slot;
}

static void free_memory(void* device, void* address) {
  example_device_t* const own = device;
  pthread_mutex_lock(&own->lock);
  const int slot = slot_of(own, address);
  if (slot >= 0) {
    free(own->bytes[slot]);
    own->bytes[slot] = NULL;
  }
  pthread_mutex_unlock(&own->lock);
}

static hetcomm_status_t find(void* device, const void* address, void** out_base,
                             uint64_t* out_size) {
  example_device_t* const own = device;
  hetcomm_status_t status = HETCOMM_NOT_FOUND;
  if (out_base == NULL || out_size == NULL) return HETCOMM_INVALID_ARGUMENT;
  pthread_mutex_lock(&own->lock);
  const int slot = slot_of(own, address);
  const uint64_t inside = ((uint64_t)(uintptr_t)address - FIRST_HANDLE) % STEP;
  if (slot >= 0 && (inside == 0 || inside < own->sizes[slot])) {
    *out_base = (void*)(uintptr_t)(FIRST_HANDLE + (uint64_t)slot * STEP);
    *out_size = own->sizes[slot];
    status = HETCOMM_OK;
  }
  pthread_mutex_unlock(&own->lock);
  return status;
}

/* Gets the host memory behind the |size_bytes| at |address| + |offset|. INVALID_ARGUMENT: |address|
 * is not in an allocation. OUT_OF_RANGE: the range extends past its allocation. */
static hetcomm_status_t resolve(example_device_t* own, const void* address, uint64_t offset,
                                uint64_t size_bytes, unsigned char** out_bytes) {
  hetcomm_status_t status = HETCOMM_INVALID_ARGUMENT;
  pthread_mutex_lock(&own->lock);
  const int slot = slot_of(own, address);
  if (slot >= 0) {
    const uint64_t inside = ((uint64_t)(uintptr_t)address - FIRST_HANDLE) % STEP;
    const uint64_t size = own->sizes[slot];
    status = inside > size || offset > size - inside || size_bytes > size - inside - offset
                 ? HETCOMM_OUT_OF_RANGE
                 : HETCOMM_OK;
    if (status == HETCOMM_OK) *out_bytes = own->bytes[slot] + inside + offset;
  }
  pthread_mutex_unlock(&own->lock);
  return status;
}

static hetcomm_status_t copy_to_host(void* device, void* stream, void* host, const void* address,
                                     uint64_t offset, uint64_t size_bytes) {
  unsigned char* bytes = NULL;
  if (stream == NULL || (host == NULL && size_bytes != 0)) return HETCOMM_INVALID_ARGUMENT;
  const hetcomm_status_t status = resolve(device, address, offset, size_bytes, &bytes);
  if (status == HETCOMM_OK && size_bytes > 0) memcpy(host, bytes, (size_t)size_bytes);
  return status;
}

static hetcomm_status_t copy_from_host(void* device, void* stream, void* address, uint64_t offset,
                                       const void* host, uint64_t size_bytes) {
  unsigned char* bytes = NULL;
  if (stream == NULL || (host == NULL && size_bytes != 0)) return HETCOMM_INVALID_ARGUMENT;
  const hetcomm_status_t status = resolve(device, address, offset, size_bytes, &bytes);
  if (status == HETCOMM_OK && size_bytes > 0) memcpy(bytes, host, (size_t)size_bytes);
  return status;
}

static const hetcomm_device_table_t kTable = {
    .struct_size = sizeof(hetcomm_device_table_t),
    .kind = "example",
    .destroy = destroy,
    .name = name,
    .allocate = allocate,
    .free = free_memory,
    .find = find,
    .copy_to_host = copy_to_host,
    .copy_from_host = copy_from_host,
};

static hetcomm_status_t create(const char* kind, const char* options, hetcomm_device_t* out_device,
                               char* text, uint64_t text_size) {
  (void)kind; /* this plug-in has only one kind */
  if (options[0] != '\0') {
    snprintf(text, (size_t)text_size, "'%.200s': it has no options", options);
    return HETCOMM_INVALID_ARGUMENT;
  }
  example_device_t* const own = calloc(1, sizeof(*own));
  if (own == NULL) return HETCOMM_OUT_OF_MEMORY;
  if (pthread_mutex_init(&own->lock, NULL) != 0) {
    free(own);
    return HETCOMM_OUT_OF_RESOURCES;
  }
  out_device->table = &kTable;
  out_device->instance = own;
  return HETCOMM_OK;
}

/* hetcomm_device_from_native() calls this function. In a real plug-in |native| would be the
 * vendor's context: the plug-in would retain it, and find() would find the memory that the
 * framework has allocated in it. */
static hetcomm_status_t create_from_native(const char* kind, void* native,
                                           hetcomm_device_t* out_device, char* text,
                                           uint64_t text_size) {
  (void)native;
  return create(kind, "", out_device, text, text_size);
}

HETCOMM_API const hetcomm_device_plugin_t* hetcomm_device_plugin(void) {
  static const char* const kinds[] = {"example"};
  static const hetcomm_device_plugin_t plugin = {
      .struct_size = sizeof(hetcomm_device_plugin_t),
      .version = HETCOMM_DEVICE_PLUGIN_VERSION,
      .kind_count = 1,
      .kinds = kinds,
      .create = create,
      .create_from_native = create_from_native,
  };
  return &plugin;
}
