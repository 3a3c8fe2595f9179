/* A plug-in for the suite of the table: kind "strict". Its copies fail where the host's memory is
 * not there, and its events say so. HETCOMM_TEST_WRONG breaks one promise:
 *   find    find() knows one byte behind an allocation
 *   leak    free() frees nothing
 *   hide    events say that copies have succeeded that have failed */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include <hetcomm/device_plugin.h>

/* The CPU cannot touch an address with it. */
#define TAG ((uint64_t)0xc7 << 56)
#define MOST 4096

struct allocation {
  uint64_t address;
  uint64_t size;
};
struct device {
  pthread_mutex_t mutex;
  struct allocation all[MOST]; /* size UINT64_MAX: none */
};
/* A stream, or an event: how its copies ended. */
struct order {
  hetcomm_status_t status;
};

static int is_wrong(const char* how) {
  const char* const asked = getenv("HETCOMM_TEST_WRONG");
  return asked != NULL && strcmp(asked, how) == 0;
}

static char* bytes_of(uint64_t address) { return (char*)(uintptr_t)(address & ~TAG); }

static void destroy(void* device) { free(device); }

static const char* name(void* device) {
  (void)device;
  return "memory that copies check";
}

/* Call with the mutex held. */
static struct allocation* find_allocation(struct device* own, uint64_t address) {
  for (int i = 0; i < MOST; ++i) {
    const struct allocation* const each = &own->all[i];
    if (each->size == UINT64_MAX || address < each->address) continue;
    const uint64_t inside = address - each->address;
    const uint64_t end = each->size + (is_wrong("find") ? 1 : 0);
    if (inside == 0 || inside < end) return &own->all[i];
  }
  return NULL;
}

static hetcomm_status_t allocate(void* device, uint64_t size_bytes, void** out_address) {
  struct device* const own = device;
  if (out_address == NULL) return HETCOMM_INVALID_ARGUMENT;
  if (size_bytes > (uint64_t)1 << 40) return HETCOMM_OUT_OF_MEMORY;
  void* const bytes = malloc(size_bytes + 16);
  if (bytes == NULL) return HETCOMM_OUT_OF_MEMORY;
  hetcomm_status_t status = HETCOMM_OUT_OF_RESOURCES;
  pthread_mutex_lock(&own->mutex);
  for (int i = 0; i < MOST && status != HETCOMM_OK; ++i) {
    if (own->all[i].size != UINT64_MAX) continue;
    own->all[i].address = (uint64_t)(uintptr_t)bytes | TAG;
    own->all[i].size = size_bytes;
    *out_address = (void*)(uintptr_t)own->all[i].address;
    status = HETCOMM_OK;
  }
  pthread_mutex_unlock(&own->mutex);
  if (status != HETCOMM_OK) free(bytes);
  return status;
}

static void free_memory(void* device, void* address) {
  struct device* const own = device;
  if (is_wrong("leak")) return;
  pthread_mutex_lock(&own->mutex);
  struct allocation* const found = find_allocation(own, (uint64_t)(uintptr_t)address);
  if (found != NULL && found->address == (uint64_t)(uintptr_t)address) {
    free(bytes_of(found->address));
    found->size = UINT64_MAX;
  }
  pthread_mutex_unlock(&own->mutex);
}

static hetcomm_status_t find(void* device, const void* address, void** out_base,
                             uint64_t* out_size) {
  struct device* const own = device;
  if (out_base == NULL || out_size == NULL) return HETCOMM_INVALID_ARGUMENT;
  pthread_mutex_lock(&own->mutex);
  const struct allocation* const found = find_allocation(own, (uint64_t)(uintptr_t)address);
  if (found != NULL) {
    *out_base = (void*)(uintptr_t)found->address;
    *out_size = found->size;
  }
  pthread_mutex_unlock(&own->mutex);
  return found != NULL ? HETCOMM_OK : HETCOMM_NOT_FOUND;
}

static hetcomm_status_t make_order(hetcomm_status_t status, void** out) {
  struct order* const made = malloc(sizeof(*made));
  if (made == NULL) return HETCOMM_OUT_OF_MEMORY;
  made->status = status;
  *out = made;
  return HETCOMM_OK;
}

static hetcomm_status_t stream_create(void* device, void** out_stream) {
  (void)device;
  return out_stream != NULL ? make_order(HETCOMM_OK, out_stream) : HETCOMM_INVALID_ARGUMENT;
}

static void release_order(void* device, void* order) {
  (void)device;
  free(order);
}

static hetcomm_status_t copy(void* device, void* stream, char* host, const void* address,
                             uint64_t offset, uint64_t size_bytes, int to_host) {
  void* base = NULL;
  uint64_t size = 0;
  if (stream == NULL || (host == NULL && size_bytes != 0)) return HETCOMM_INVALID_ARGUMENT;
  if (find(device, address, &base, &size) != HETCOMM_OK) return HETCOMM_INVALID_ARGUMENT;
  const uint64_t rest = size - ((uint64_t)(uintptr_t)address - (uint64_t)(uintptr_t)base);
  if (offset > rest || size_bytes > rest - offset) return HETCOMM_OUT_OF_RANGE;
  char* const own = bytes_of((uint64_t)(uintptr_t)address) + offset;
  for (uint64_t done = 0; done < size_bytes;) {
    const struct iovec mine = {own + done, size_bytes - done};
    const struct iovec theirs = {host + done, size_bytes - done};
    const ssize_t moved = to_host ? process_vm_writev(getpid(), &mine, 1, &theirs, 1, 0)
                                  : process_vm_readv(getpid(), &mine, 1, &theirs, 1, 0);
    if (moved <= 0) {
      ((struct order*)stream)->status = HETCOMM_DEVICE_LOST;
      break;
    }
    done += (uint64_t)moved;
  }
  return HETCOMM_OK;
}

static hetcomm_status_t copy_to_host(void* device, void* stream, void* host, const void* address,
                                     uint64_t offset, uint64_t size_bytes) {
  return copy(device, stream, host, address, offset, size_bytes, 1);
}

static hetcomm_status_t copy_from_host(void* device, void* stream, void* address, uint64_t offset,
                                       const void* host, uint64_t size_bytes) {
  return copy(device, stream, (char*)(uintptr_t)host, address, offset, size_bytes, 0);
}

static hetcomm_status_t event_record(void* device, void* stream, void** out_event) {
  (void)device;
  if (stream == NULL || out_event == NULL) return HETCOMM_INVALID_ARGUMENT;
  struct order* const own = stream;
  const hetcomm_status_t status = is_wrong("hide") ? HETCOMM_OK : own->status;
  own->status = HETCOMM_OK;
  return make_order(status, out_event);
}

static hetcomm_status_t event_query(void* device, void* event) {
  (void)device;
  return event != NULL ? ((struct order*)event)->status : HETCOMM_INVALID_ARGUMENT;
}

static hetcomm_status_t create(const char* kind, const char* options, hetcomm_device_t* out_device,
                               char* text, uint64_t text_size) {
  static hetcomm_device_table_t table;
  (void)kind;
  if (options[0] != '\0') {
    snprintf(text, (size_t)text_size, "'%s': it has no options", options);
    return HETCOMM_INVALID_ARGUMENT;
  }
  struct device* const made = malloc(sizeof(*made));
  if (made == NULL) return HETCOMM_OUT_OF_MEMORY;
  pthread_mutex_init(&made->mutex, NULL);
  for (int i = 0; i < MOST; ++i) made->all[i].size = UINT64_MAX;
  table.struct_size = sizeof(table);
  table.kind = "strict";
  table.destroy = destroy;
  table.name = name;
  table.allocate = allocate;
  table.free = free_memory;
  table.find = find;
  table.stream_create = stream_create;
  table.stream_destroy = release_order;
  table.copy_to_host = copy_to_host;
  table.copy_from_host = copy_from_host;
  table.event_record = event_record;
  table.event_query = event_query;
  table.event_wait = event_query;
  table.event_release = release_order;
  out_device->table = &table;
  out_device->instance = made;
  return HETCOMM_OK;
}

HETCOMM_API const hetcomm_device_plugin_t* hetcomm_device_plugin(void) {
  static const char* const kinds[] = {"strict"};
  static hetcomm_device_plugin_t plugin;
  plugin.struct_size = sizeof(plugin);
  plugin.version = HETCOMM_DEVICE_PLUGIN_VERSION;
  plugin.kind_count = 1;
  plugin.kinds = kinds;
  plugin.create = create;
  return &plugin;
}
