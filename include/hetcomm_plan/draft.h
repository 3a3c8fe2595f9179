/* Makes and draws layouts and reshard plans without a job. reshard/README.md describes the
 * documents. */
#ifndef HETCOMM_PLAN_DRAFT_H_
#define HETCOMM_PLAN_DRAFT_H_

#include <hetcomm_plan/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Writes |layout| in |form|: one line for each part as TEXT, or the list of all parts as JSON.
 * |layout| is a JSON document that describes a layout by its parts, or by a mesh of ranks with a
 * placement for each axis, or by the parallel degrees of activations.
 *   INVALID_ARGUMENT  There is no such form, or the layout is malformed or inconsistent; the text
 *                     names the entry, or the rank and box.
 *   UNSUPPORTED       The layout is of another version, or |form| is SVG.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_draft_layout(const char* layout, int32_t form, size_t capacity, char* out_text,
                     size_t* out_size) HETCOMM_NOEXCEPT;

/* Makes a reshard plan without a communicator, and writes the moves of all ranks in |form|. TEXT
 * gives tables. JSON gives steps, bytes, forecast and the strategies that were considered. SVG, for
 * one tensor only, gives a picture of the ranks and the data that each sends to others. |question|
 * is a JSON document with layouts, tensors, options, and the link model if one is known. Without a
 * link model there is no forecast, and the strategy "auto" means "bsr", or "direct" for sums.
 *   INVALID_ARGUMENT  There is no such form, |question| is malformed, shapes differ, types cannot
 *                     be converted, or boxes of a destination overlap in the memory of a rank.
 *   OUT_OF_RANGE      The links lack a rank that holds a part.
 *   NOT_FOUND         The link model lacks a host or a NIC of a rank.
 *   UNSUPPORTED       The strategy does not cover the layouts, BOOL would be averaged, source and
 *                     destination keep several terms and divide by different numbers, a document is
 *                     of another version, or |form| is SVG and there are several tensors.
 *   OUT_OF_RESOURCES  The proof takes too long.
 *   INTERNAL          The proof fails; please report that.
 * Documents of this header have at most 1 GiB. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_draft_reshard(const char* question, int32_t form, size_t capacity, char* out_text,
                      size_t* out_size) HETCOMM_NOEXCEPT;

/* Writes an existing reshard plan in |form|: TEXT, or SVG for one tensor. |plan| is the JSON that
 * hetcomm_draft_reshard() or hetcomm_reshard_describe() has written.
 *   INVALID_ARGUMENT  There is no such form, or the plan is malformed.
 *   UNSUPPORTED       The plan is of another version, or |form| is JSON, or SVG for several
 *                     tensors.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_draft_draw(const char* plan, int32_t form, size_t capacity, char* out_text,
                   size_t* out_size) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_PLAN_DRAFT_H_ */
