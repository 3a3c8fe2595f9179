/* Describes this machine, and the NICs that carry the data of each accelerator. To infer, query and
 * draw link models, use libhetcomm_plan (hetcomm_plan/links.h). */
#ifndef HETCOMM_TOPOLOGY_H_
#define HETCOMM_TOPOLOGY_H_

#include <hetcomm/context.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Output formats for a machine or a link model. */
enum {
  /* Human-readable UTF-8 text. A machine is shown as a tree of NUMA nodes, PCIe switches,
   * accelerators and NICs, with a matrix of distances and a legend. A link model is shown as
   * clusters, hosts, paths, and the rates between pairs of hosts. */
  HETCOMM_TOPOLOGY_TEXT = 0,
  /* A JSON document. It can be saved to a file and used later, on this machine or another one:
   * HETCOMM_TOPOLOGY names a machine file, HETCOMM_LINK_MODEL a link model file. A machine document
   * also lists the NICs that each accelerator and NUMA node uses, best first. */
  HETCOMM_TOPOLOGY_JSON = 1,
  /* A picture, as an SVG document: the tree of a machine, or the rates of all pairs of hosts.
   * Version 1.0 will remove this format; libhetcomm_plan draws the picture from the JSON. */
  HETCOMM_TOPOLOGY_SVG = 2
};

/* Describes the machine that |context| uses: this host, or the machine in the file that
 * HETCOMM_TOPOLOGY names. The library reads the topology once: in the first call, or when the
 * context is created if HETCOMM_NIC or HETCOMM_FABRIC is set. Reading takes up to about 20 ms.
 * |format| is one of HETCOMM_TOPOLOGY_*. Writes at most |capacity| bytes, including the terminating
 * NUL, to |out_text|, and the size that the full text needs, including its NUL, to |*out_size|.
 * |out_text| may be NULL when |capacity| is 0.
 *   INVALID_ARGUMENT   |format| is unknown, or one of these variables or the file is malformed.
 *   NOT_FOUND          One of the variables names something that the machine does not have, or the
 *                      file does not exist.
 *   UNSUPPORTED        The file requires hwloc, which is not installed, or the file has a different
 *                      version.
 *   PERMISSION_DENIED  The file cannot be read, or is world-writable.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_context_topology(hetcomm_context_t* context, int32_t format, size_t capacity,
                         char* out_text, size_t* out_size) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_TOPOLOGY_H_ */
