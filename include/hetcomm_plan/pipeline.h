/* Pipeline plans, offline. pipeline/README.md describes the documents. */
#ifndef HETCOMM_PLAN_PIPELINE_H_
#define HETCOMM_PLAN_PIPELINE_H_

#include <hetcomm_plan/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Checks a pipeline plan (hetcomm/pipeline.h), and writes what follows from it in |form|. TEXT
 * gives its hash, which ranks compare, a table of the stages with the activations that live at a
 * time, and the boundaries with their bytes and items in flight. JSON gives the same, and the
 * actions of each group of ranks. SVG gives a Gantt chart of the schedule, in which each forward
 * step takes one unit of time, each backward step two, and transfers none.
 *   INVALID_ARGUMENT  There is no such form, or |plan| is malformed or not sound. The text names
 *                     the entry, or the rank and the action.
 *   NOT_FOUND         There is no schedule of the name that |plan| gives.
 *   OUT_OF_RANGE      A stage would keep more activations than its limit.
 *   UNSUPPORTED       |plan| is of another version, or |form| is SVG and |plan| has several
 *                     pipelines, or too much for a picture.
 *   OUT_OF_RESOURCES  |form| is SVG, and stages times micro-batches are more than 4,194,304.
 * |plan| has at most 256 MiB. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_draft_pipeline(const char* plan, int32_t form, size_t capacity, char* out_text,
                       size_t* out_size) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_PLAN_PIPELINE_H_ */
