/* Makes, checks and simulates pipeline schedules without a job. pipeline/README.md describes the
 * documents. */
#ifndef HETCOMM_PLAN_SCHEDULE_H_
#define HETCOMM_PLAN_SCHEDULE_H_

#include <hetcomm_plan/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* More formats, for schedules only. */
enum {
  HETCOMM_PLAN_CSV = 3,  /* a line for each rank, as torch.distributed.pipelining reads it */
  HETCOMM_PLAN_TRACE = 4 /* a Chrome trace: JSON for chrome://tracing or Perfetto */
};

/* Makes or reads a pipeline schedule, checks it, simulates it, and writes the answer in |form|.
 * TEXT gives a table of the ranks, the time of an iteration, and its critical path. JSON gives the
 * actions, the peak memory of each rank, the items in flight at each boundary with which no step
 * waits for room, and the forecast. SVG gives a Gantt chart. CSV gives the schedule alone. Without
 * times each forward step takes one unit of time, each backward step two, and transfers none.
 *
 * |question| is a JSON document with the name of a schedule and its counts, or the actions of every
 * rank, and with the times, memory and limits that are known. It may also have the traces of a run
 * (hetcomm_pipeline_trace()). The answer then has the times of that run, too.
 *   INVALID_ARGUMENT  There is no such form, |question| is malformed, its counts make no schedule,
 *                     or the schedule is not sound: an action is missing or there twice, or no rank
 *                     can go on. The text names the entry, or the rank and the action.
 *   NOT_FOUND         There is no schedule of that name.
 *   OUT_OF_RANGE      A rank would hold more than its limit.
 *   OUT_OF_RESOURCES  Stages times micro-batches are more than 4,194,304.
 *   UNSUPPORTED       |question| is of another version, or |form| is SVG and there are more than
 *                     40,000 actions or 128 ranks.
 * |question| has at most 1 GiB. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_draft_schedule(const char* question, int32_t form, size_t capacity, char* out_text,
                       size_t* out_size) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_PLAN_SCHEDULE_H_ */
