/* A plug-in that is wrong in the way that HETCOMM_TEST_WRONG names. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hetcomm/device_plugin.h>

static int is_wrong(const char* how) {
  const char* const asked = getenv("HETCOMM_TEST_WRONG");
  return asked != NULL && strcmp(asked, how) == 0;
}

static void destroy(void* device) { (void)device; }

static hetcomm_status_t create(const char* kind, const char* options, hetcomm_device_t* out_device,
                               char* text, uint64_t text_size) {
  static hetcomm_device_table_t table;
  static char self;
  (void)kind;
  (void)options;
  if (is_wrong("crashes late")) abort();
  if (is_wrong("fails")) {
    snprintf(text, (size_t)text_size, "the driver is older than the moon");
    return HETCOMM_DEVICE_LOST;
  }
  if (is_wrong("fails silently")) return HETCOMM_OUT_OF_RESOURCES;
  if (is_wrong("has no end")) {
    memset(text, 'x', (size_t)text_size);
    return HETCOMM_INTERNAL;
  }
  if (is_wrong("no table")) return HETCOMM_OK;
  table.struct_size = is_wrong("short table") ? 64 : sizeof(table);
  table.kind = is_wrong("no kind") ? NULL : "bad";
  table.destroy = destroy; /* and nothing else */
  out_device->table = &table;
  out_device->instance = &self;
  return HETCOMM_OK;
}

static hetcomm_status_t create_from_native(const char* kind, void* native,
                                           hetcomm_device_t* out_device, char* text,
                                           uint64_t text_size) {
  (void)native;
  return create(kind, "", out_device, text, text_size);
}

HETCOMM_API const hetcomm_device_plugin_t* hetcomm_device_plugin(void) {
  static const char* kinds[2] = {"bad", "worse"};
  static hetcomm_device_plugin_t plugin;
  if (is_wrong("crashes")) abort();
  if (is_wrong("exits")) exit(0);
  if (is_wrong("nothing")) return NULL;
  plugin.struct_size = is_wrong("short") ? 8 : sizeof(plugin);
  plugin.create_from_native = create_from_native;
  if (is_wrong("old")) {
    plugin.struct_size = offsetof(hetcomm_device_plugin_t, create_from_native);
  }
  plugin.version = HETCOMM_DEVICE_PLUGIN_VERSION + (is_wrong("version") ? 1 : 0);
  plugin.kind_count = is_wrong("no kinds") ? 0 : 2;
  plugin.kinds = kinds;
  kinds[0] = is_wrong("name") ? "b ad" : "bad";
  kinds[1] = is_wrong("twice") ? "bad" : is_wrong("taken") ? "sim-handle" : "worse";
  if (is_wrong("null name")) kinds[1] = NULL;
  plugin.create = is_wrong("no create") ? NULL : create;
  return &plugin;
}
