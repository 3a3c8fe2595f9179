/* Checks and simulates pipeline plans without a job. pipeline/README.md describes the documents. */
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

/* Simulates a step of a whole pipeline plan, with all its pipelines at once. Transfers, gathered
 * weights and reductions of gradients share the links of a model. Writes in |form| what
 * hetcomm_draft_schedule() writes, also as HETCOMM_PLAN_TRACE. The numbers of stages continue from
 * one pipeline to the next. A rank in the result is a group of ranks that have the same stages.
 *
 * |question| is a JSON document with the plan, the times of its stages, and, where they are known,
 * the link model, the NIC of each rank, and the bytes of the model's items.
 *   INVALID_ARGUMENT  There is no such form, |question| is malformed, or the plan is not sound. The
 *                     text names the entry, or the rank and the action.
 *   NOT_FOUND         The link model lacks a host or a NIC of a rank, or there is no schedule of
 *                     the name that the plan gives.
 *   OUT_OF_RANGE      A stage would keep more activations than its limit.
 *   UNSUPPORTED       A document is of another version, a boundary's strategy does not cover its
 *                     layouts, or |form| is CSV, or SVG and there is too much for a picture.
 *   OUT_OF_RESOURCES  Stages times micro-batches are more than 4,194,304.
 * |question| has at most 1 GiB. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_draft_forecast(const char* question, int32_t form, size_t capacity, char* out_text,
                       size_t* out_size) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_PLAN_PIPELINE_H_ */
