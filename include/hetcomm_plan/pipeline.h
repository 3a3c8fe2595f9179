/* Declares functions that check and simulate pipeline plans without a running job.
 * pipeline/README.md describes the JSON documents that they read and write. */
#ifndef HETCOMM_PLAN_PIPELINE_H_
#define HETCOMM_PLAN_PIPELINE_H_

#include <hetcomm_plan/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Checks a pipeline plan (hetcomm/pipeline.h), and writes a summary of it in |form|. TEXT has its
 * hash, which ranks compare, a table of the stages with the number of activations held at a time,
 * and the boundaries with their bytes and items in flight. JSON has the same data, and the actions
 * of each group of ranks. SVG is a Gantt chart of the schedule, in which each forward step takes
 * one unit of time, each backward step two, and transfers take none.
 *   INVALID_ARGUMENT  |form| is unknown, or |plan| is malformed or invalid. The text names the
 *                     entry, or the rank and the action.
 *   NOT_FOUND         There is no schedule with the name in |plan|.
 *   OUT_OF_RANGE      A stage would hold more activations than its limit.
 *   UNSUPPORTED       |plan| has a different version, or |form| is SVG and |plan| has multiple
 *                     pipelines or is too large for a picture.
 *   OUT_OF_RESOURCES  |form| is SVG, and the number of stages times micro-batches exceeds
 *                     4,194,304.
 * |plan| has a maximum size of 256 MiB. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_draft_pipeline(const char* plan, int32_t form, size_t capacity, char* out_text,
                       size_t* out_size) HETCOMM_NOEXCEPT;

/* Simulates a training step of a whole pipeline plan, with all its pipelines running concurrently.
 * Transfers, gathers of weights and reductions of gradients share the links of a link model. Writes
 * the result in |form| like hetcomm_draft_schedule(), including HETCOMM_PLAN_TRACE. The numbers of
 * stages continue from one pipeline to the next. A rank in the result is a group of ranks that have
 * the same stages.
 *
 * |question| is a JSON document with the plan, the times of its stages, and optionally the link
 * model, the NIC of each rank, and the bytes of the model's items.
 *   INVALID_ARGUMENT  |form| is unknown, |question| is malformed, or the plan is invalid. The text
 *                     names the entry, or the rank and the action.
 *   NOT_FOUND         The link model does not contain a rank's host or NIC, or there is no schedule
 *                     with the name in the plan.
 *   OUT_OF_RANGE      A stage would hold more activations than its limit.
 *   UNSUPPORTED       A document has a different version, a boundary's strategy does not support
 *                     its layouts, |form| is CSV, or |form| is SVG and the plan is too large for a
 *                     picture.
 *   OUT_OF_RESOURCES  The number of stages times micro-batches exceeds 4,194,304.
 * |question| has a maximum size of 1 GiB. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_draft_forecast(const char* question, int32_t form, size_t capacity, char* out_text,
                       size_t* out_size) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_PLAN_PIPELINE_H_ */
