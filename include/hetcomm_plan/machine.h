/* Declares a function that draws a machine: its accelerators, its NICs, and the links between them.
 * topology/README.md describes the JSON document that it reads. */
#ifndef HETCOMM_PLAN_MACHINE_H_
#define HETCOMM_PLAN_MACHINE_H_

#include <hetcomm_plan/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Writes |machine| in |form|. |machine| is a JSON document of at most 16 MiB, such as
 * hetcomm_context_topology() writes. TEXT has a tree, a matrix of distances and a legend. JSON is
 * the document in a fixed order. SVG shows the tree. The NICs that accelerators and NUMA nodes use
 * are those in the document. If it has none, they are selected as libhetcomm does if no variables
 * are set. INVALID_ARGUMENT: |form| is unknown, or the document is malformed. UNSUPPORTED: it has a
 * different version. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_machine_draw(const char* machine, int32_t form, size_t capacity, char* out_text,
                     size_t* out_size) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_PLAN_MACHINE_H_ */
