/* Declares old names of functions, and functions that have moved to libhetcomm_plan.
 * <hetcomm/hetcomm.h> does not include this header, so a program that uses these functions must
 * include it. The library still exports them, so programs that were linked against them keep
 * working. Version 1.0 will remove all of them. */
#ifndef HETCOMM_COMPAT_H_
#define HETCOMM_COMPAT_H_

#include <hetcomm_plan/links.h>

#include <hetcomm/hetcomm.h>

/* Names before version 0.2. Since then, every function that destroys a handle is named *_destroy,
 * and no query has "get" in its name. */
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

/* The host and the NIC of each rank in a link model. */
typedef struct hetcomm_reshard_links {
  /* The caller sets it to sizeof(hetcomm_reshard_links_t). */
  size_t struct_size;
  /* A link model as JSON, in the format that hetcomm_communicator_link_model() writes. */
  const char* model;
  /* The name of each rank's host in the model. */
  const char* const* hosts;
  /* The NIC of each rank. NULL: each rank uses the first NIC of its host. */
  const char* const* nics;
  size_t rank_count;
} hetcomm_reshard_links_t;

/* Replaced by hetcomm_draft_reshard(), which takes JSON. Makes a reshard plan without a
 * communicator, and writes it in the format of hetcomm_reshard_describe(). If |links| is NULL, the
 * links are unknown: there is no forecast, and AUTO selects BSR, or DIRECT for sums. |options| may
 * be NULL; the function uses only strategy, outer, slice_bytes and prove.
 *   INVALID_ARGUMENT  As for hetcomm_reshard_create(), or the link model is malformed.
 *   OUT_OF_RANGE      |links| does not include a rank that holds a part. Other reasons are as for
 *                     hetcomm_reshard_create().
 *   NOT_FOUND         The link model does not contain a rank's host or NIC.
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
