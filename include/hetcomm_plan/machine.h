/* Draws machines: their accelerators, their NICs, and the links between them. topology/README.md
 * describes the document. */
#ifndef HETCOMM_PLAN_MACHINE_H_
#define HETCOMM_PLAN_MACHINE_H_

#include <hetcomm_plan/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Writes |machine| in |form|. |machine| is a JSON document of at most 16 MiB, such as
 * hetcomm_context_topology() gives. TEXT gives a tree, a matrix of distances and a legend. JSON
 * gives the document in a fixed order. SVG gives the tree. The NICs of accelerators and NUMA nodes
 * are those that the document names. If it names none, they are chosen as libhetcomm chooses
 * without any variables set. INVALID_ARGUMENT: there is no such form, or the document is malformed.
 * UNSUPPORTED: it is of another version. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_machine_draw(const char* machine, int32_t form, size_t capacity, char* out_text,
                     size_t* out_size) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_PLAN_MACHINE_H_ */
