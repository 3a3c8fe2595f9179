// Defines old names of functions (hetcomm/compat.h), for programs that were linked against them.
// Version 1.0 will remove these names.
#include <hetcomm/hetcomm.h>

extern "C" {

HETCOMM_API hetcomm_status_t hetcomm_device_get_info(hetcomm_context_t* context, int32_t index,
                                                     hetcomm_device_info_t* out_info) noexcept {
  return hetcomm_device_info(context, index, out_info);
}

HETCOMM_API hetcomm_status_t hetcomm_memory_free(hetcomm_memory_t* memory) noexcept {
  return hetcomm_memory_destroy(memory);
}

HETCOMM_API hetcomm_status_t hetcomm_remote_memory_get_info(
    const hetcomm_remote_memory_t* remote, hetcomm_remote_memory_info_t* out_info) noexcept {
  return hetcomm_remote_memory_info(remote, out_info);
}

HETCOMM_API hetcomm_status_t
hetcomm_remote_memory_release(hetcomm_remote_memory_t* remote) noexcept {
  return hetcomm_remote_memory_destroy(remote);
}

HETCOMM_API hetcomm_status_t hetcomm_request_release(hetcomm_request_t* request) noexcept {
  return hetcomm_request_destroy(request);
}

HETCOMM_API hetcomm_status_t
hetcomm_reshard_get_facts(hetcomm_reshard_t* reshard, hetcomm_reshard_facts_t* out_facts) noexcept {
  return hetcomm_reshard_facts(reshard, out_facts);
}

HETCOMM_API hetcomm_status_t hetcomm_stream_release(hetcomm_stream_t* stream) noexcept {
  return hetcomm_stream_destroy(stream);
}

}  // extern "C"
