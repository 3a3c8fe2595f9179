/* Declares functions that make and draw layouts and reshard plans without a running job.
 * reshard/README.md describes the JSON documents that they read and write. */
#ifndef HETCOMM_PLAN_DRAFT_H_
#define HETCOMM_PLAN_DRAFT_H_

#include <hetcomm_plan/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Writes |layout| in |form|: TEXT has one line for each part, and JSON has the list of all parts.
 * |layout| is a JSON document of at most 1 GiB. It describes a layout by its parts, by a mesh of
 * ranks with a placement for each axis, or by the parallel degrees of activations.
 *   INVALID_ARGUMENT  |form| is unknown, or the layout is malformed or inconsistent; the text names
 *                     the entry, or the rank and box.
 *   UNSUPPORTED       The layout has a different version, or |form| is SVG.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_draft_layout(const char* layout, int32_t form, size_t capacity, char* out_text,
                     size_t* out_size) HETCOMM_NOEXCEPT;

/* Makes a reshard plan without a communicator, and writes the transfers of all ranks in |form|.
 * TEXT has tables. JSON has steps, bytes, the forecast and the strategies that were considered.
 * SVG, which requires a single tensor, is a picture of the ranks and the data that each sends to
 * the others. |question| is a JSON document with layouts, tensors, options, and optionally a link
 * model. Without a link model there is no forecast, and the strategy "auto" selects "bsr", or
 * "direct" for sums.
 *   INVALID_ARGUMENT  |form| is unknown, |question| is malformed, shapes differ, types cannot be
 *                     converted, or boxes of a destination overlap in the memory of a rank.
 *   OUT_OF_RANGE      The links do not include a rank that holds a part.
 *   NOT_FOUND         The link model does not contain a rank's host or NIC.
 *   UNSUPPORTED       The strategy does not support the layouts, BOOL would be averaged, source and
 *                     destination both have multiple terms and different divisors, a document has a
 *                     different version, or |form| is SVG and there are multiple tensors.
 *   OUT_OF_RESOURCES  The verification of the plan takes too long.
 *   INTERNAL          The verification of the plan fails; please report this.
 * Documents have a maximum size of 1 GiB. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_draft_reshard(const char* question, int32_t form, size_t capacity, char* out_text,
                      size_t* out_size) HETCOMM_NOEXCEPT;

/* Writes an existing reshard plan in |form|, which is TEXT, or SVG if the plan has one tensor.
 * |plan| is JSON from hetcomm_draft_reshard() or hetcomm_reshard_describe(), with a maximum size of
 * 1 GiB.
 *   INVALID_ARGUMENT  |form| is unknown, or the plan is malformed.
 *   UNSUPPORTED       The plan has a different version, or |form| is JSON, or is SVG and the plan
 *                     has multiple tensors.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_draft_draw(const char* plan, int32_t form, size_t capacity, char* out_text,
                   size_t* out_size) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_PLAN_DRAFT_H_ */
