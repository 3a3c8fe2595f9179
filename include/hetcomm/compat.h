/* Names that functions had before, and functions that libhetcomm_plan has taken over. A program
 * that uses them includes this header after <hetcomm/hetcomm.h>; it is not part of that one. The
 * library still exports them, so that a program that was linked with them runs. All go with version
 * 1.0. */
#ifndef HETCOMM_COMPAT_H_
#define HETCOMM_COMPAT_H_

#include <hetcomm_plan/links.h>

#include <hetcomm/hetcomm.h>

/* Before 0.2: every handle now ends with *_destroy, and no query has "get" in its name. */
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

/* Now hetcomm_links_infer(), with one of HETCOMM_TOPOLOGY_* as |format|. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_link_model_infer(const char* measurements, int32_t format, size_t capacity, char* out_text,
                         size_t* out_size) HETCOMM_NOEXCEPT;

/* Now hetcomm_links_rates(). [any-thread] */
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
  /* The NIC of each rank; NULL: the first of its host. */
  const char* const* nics;
  size_t rank_count;
} hetcomm_reshard_links_t;

/* Now hetcomm_draft_reshard(), which takes JSON. Makes a reshard plan without a communicator, and
 * writes it as hetcomm_reshard_describe() does. |links| NULL: nothing is known of the links; then
 * there is no forecast, and AUTO is BSR, or DIRECT for sums. |options| may be NULL; only strategy,
 * outer, slice_bytes and prove are looked at.
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
