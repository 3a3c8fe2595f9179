/* Declares a function that makes, checks and simulates pipeline schedules without a running job.
 * pipeline/README.md describes the JSON documents that it reads and writes. */
#ifndef HETCOMM_PLAN_SCHEDULE_H_
#define HETCOMM_PLAN_SCHEDULE_H_

#include <hetcomm_plan/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Additional output formats for schedules and forecasts. */
enum {
  HETCOMM_PLAN_CSV = 3,  /* one line for each rank, as torch.distributed.pipelining reads it */
  HETCOMM_PLAN_TRACE = 4 /* a Chrome trace: JSON for chrome://tracing or Perfetto */
};

/* Makes or reads a pipeline schedule, checks it, simulates it, and writes the result in |form|.
 * TEXT has a table of the ranks, the time of an iteration, and its critical path. JSON has the
 * actions, the peak memory of each rank, the forecast, and for each boundary the number of items in
 * flight that is large enough that no step waits for a free buffer. SVG is a Gantt chart. CSV has
 * only the schedule. If no times are specified, each forward step takes one unit of time, each
 * backward step two, and transfers take none.
 *
 * |question| is a JSON document with the name and the counts of a schedule, or with the actions of
 * every rank. It can also have times, memory sizes and limits, and the traces of a run
 * (hetcomm_pipeline_trace()). With traces, the result also has the times of that run.
 *   INVALID_ARGUMENT  |form| is unknown, |question| is malformed, there is no schedule for its
 *                     counts, or the schedule is invalid: an action is missing or occurs twice, or
 *                     the ranks deadlock. The text names the entry, or the rank and the action.
 *   NOT_FOUND         There is no schedule with this name.
 *   OUT_OF_RANGE      A rank would exceed its memory limit.
 *   OUT_OF_RESOURCES  The number of stages times micro-batches exceeds 4,194,304.
 *   UNSUPPORTED       |question| has a different version, or |form| is SVG and there are more than
 *                     40,000 actions or 128 ranks.
 * |question| has a maximum size of 1 GiB. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_draft_schedule(const char* question, int32_t form, size_t capacity, char* out_text,
                       size_t* out_size) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_PLAN_SCHEDULE_H_ */
