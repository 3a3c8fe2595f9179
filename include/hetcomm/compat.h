/* Declares former names of functions, and functions that libhetcomm_plan has taken over. A program
 * that uses them includes this header after <hetcomm/hetcomm.h>, which does not include it. The
 * library still exports the functions, so programs that were linked with them run. Version 1.0
 * removes all of them. */
#ifndef HETCOMM_COMPAT_H_
#define HETCOMM_COMPAT_H_

#include <hetcomm_plan/links.h>

#include <hetcomm/hetcomm.h>

/* Names before version 0.2. Now every handle ends with *_destroy, and no query has "get" in its
 * name. */
#define hetcomm_device_get_info hetcomm_device_info
#define hetcomm_memory_free hetcomm_memory_destroy
#define hetcomm_remote_memory_get_info hetcomm_remote_memory_info
#define hetcomm_remote_memory_release hetcomm_remote_memory_destroy
#define hetcomm_request_release hetcomm_request_destroy
#define hetcomm_reshard_get_facts hetcomm_reshard_facts
#define hetcomm_stream_release hetcomm_stream_destroy

#ifdef __cplusplus
extern "C" {
#endif

/* Replaced by hetcomm_links_infer(). |format| is one of HETCOMM_TOPOLOGY_*. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_link_model_infer(const char* measurements, int32_t format, size_t capacity, char* out_text,
                         size_t* out_size) HETCOMM_NOEXCEPT;

/* Replaced by hetcomm_links_rates(). [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_link_model_rates(const char* model, size_t count, const hetcomm_link_ends_t* transfers,
                         uint64_t* out_bytes_per_s) HETCOMM_NOEXCEPT;

/* The places of ranks in a link model. */
typedef struct hetcomm_reshard_links {
  /* The caller sets it to sizeof(hetcomm_reshard_links_t). */
  size_t struct_size;
  /* A link model as JSON, as hetcomm_communicator_link_model() writes it. */
  const char* model;
  /* The host of each rank in the model. */
  const char* const* hosts;
  /* The NIC of each rank. NULL: each rank has the first NIC of its host. */
  const char* const* nics;
  size_t rank_count;
} hetcomm_reshard_links_t;

/* Replaced by hetcomm_draft_reshard(), which takes JSON. Makes a reshard plan without a
 * communicator, and writes it as hetcomm_reshard_describe() does. |links| NULL: the links are
 * unknown. Then there is no forecast, and AUTO means BSR, or DIRECT for sums. |options| may be
 * NULL; the function uses only strategy, outer, slice_bytes and prove.
 *   INVALID_ARGUMENT  As for hetcomm_reshard_create(), or the model is not a valid one.
 *   NOT_FOUND         The model lacks a host or a NIC of a rank.
 *   UNSUPPORTED       As for hetcomm_reshard_create().
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reshard_draft(
    const hetcomm_reshard_tensor_t* tensors, size_t tensor_count,
    const hetcomm_reshard_options_t* options, const hetcomm_reshard_links_t* links, int32_t format,
    size_t capacity, char* out_text, size_t* out_size) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_COMPAT_H_ */
