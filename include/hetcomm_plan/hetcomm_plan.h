/* hetcomm_plan: analyses and draws machines, links, layouts, reshard plans, pipeline schedules and
 * pipeline plans, without a job.
 *
 * The library reads no file, no clock and no environment, and keeps nothing between two calls: the
 * same input gives the same bytes on every machine. It does not need libhetcomm. It takes as JSON
 * what libhetcomm knows: a machine (hetcomm_context_topology), a link model
 * (hetcomm_communicator_link_model), a layout (hetcomm_layout_json), or a reshard plan
 * (hetcomm_reshard_describe).
 *
 * Documents. Each document has a "format" and a "version". A document of another version is refused
 * with UNSUPPORTED. A field that this version does not know, or that an object has twice, is
 * refused with INVALID_ARGUMENT. The text names the line of a syntax error, or the path of a wrong
 * entry, such as "layouts.before.parts[2].rank".
 *
 * Texts. A function that writes a text uses |capacity| bytes of |out_text|, with the closing NUL.
 * |*out_size| becomes the size that the whole text needs, with its NUL. |out_text| may be NULL when
 * |capacity| is 0.
 *
 * Cost. The time for a document of n entries may grow with the square of n if the document is made
 * for that purpose. The number of moves of a plan depends on its layouts. A service that takes
 * documents from strangers has to limit their size, and the memory and time of each call.
 *
 * Any thread may call any function. Errors are status codes, as in libhetcomm;
 * hetcomm_plan_last_error() gives the text. Every function may return OUT_OF_MEMORY. While the
 * version is 0.x, a minor version may change functions and documents. */
#ifndef HETCOMM_PLAN_HETCOMM_PLAN_H_
#define HETCOMM_PLAN_HETCOMM_PLAN_H_

#include <hetcomm_plan/base.h>
#include <hetcomm_plan/draft.h>
#include <hetcomm_plan/links.h>
#include <hetcomm_plan/machine.h>
#include <hetcomm_plan/pipeline.h>
#include <hetcomm_plan/schedule.h>

#endif /* HETCOMM_PLAN_HETCOMM_PLAN_H_ */
