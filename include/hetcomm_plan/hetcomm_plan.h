/* libhetcomm_plan analyses and draws machines, links, layouts, reshard plans, pipeline schedules
 * and pipeline plans, without a running job.
 *
 * The library reads no files, clocks or environment variables, and keeps no state between calls:
 * the same input gives the same output on every machine. It does not depend on libhetcomm. It
 * accepts JSON that libhetcomm writes: a machine (hetcomm_context_topology), a link model
 * (hetcomm_communicator_link_model), a layout (hetcomm_layout_json), or a reshard plan
 * (hetcomm_reshard_describe).
 *
 * Documents. Each document has a "format" and a "version". Functions return UNSUPPORTED for a
 * document with a different version, and INVALID_ARGUMENT for an unknown or duplicate field. The
 * text has the line of a syntax error, or the path of an invalid entry, such as
 * "layouts.before.parts[2].rank".
 *
 * Texts. A function that writes a text uses at most |capacity| bytes of |out_text|, including the
 * terminating NUL. |*out_size| becomes the size that the full text needs, including its NUL.
 * |out_text| may be NULL if |capacity| is 0.
 *
 * Cost. For a maliciously constructed document of n entries, the time can grow with the square of
 * n. The number of transfers in a reshard plan depends on its layouts. A service that accepts
 * untrusted documents must limit their size, and the memory and time of each call.
 *
 * Any thread may call any function. Errors are status codes, as in libhetcomm;
 * hetcomm_plan_last_error() returns the text. Every function that returns a status may return
 * OUT_OF_MEMORY. While the version is 0.x, a new minor version may change functions and
 * documents. */
#ifndef HETCOMM_PLAN_HETCOMM_PLAN_H_
#define HETCOMM_PLAN_HETCOMM_PLAN_H_

#include <hetcomm_plan/base.h>
#include <hetcomm_plan/draft.h>
#include <hetcomm_plan/links.h>
#include <hetcomm_plan/machine.h>
#include <hetcomm_plan/pipeline.h>
#include <hetcomm_plan/schedule.h>

#endif /* HETCOMM_PLAN_HETCOMM_PLAN_H_ */
