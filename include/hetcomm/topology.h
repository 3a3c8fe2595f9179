/* Describes this machine, and which NICs the data of each accelerator uses. libhetcomm_plan infers,
 * queries and draws link models (hetcomm_plan/links.h). */
#ifndef HETCOMM_TOPOLOGY_H_
#define HETCOMM_TOPOLOGY_H_

#include <hetcomm/context.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Formats in which a machine or a link model is written. */
enum {
  /* Human-readable UTF-8 text. For a machine: a tree of NUMA nodes, PCIe switches, accelerators and
   * NICs, a matrix of distances, and a legend. For a link model: clusters, hosts, paths, and the
   * rates between pairs of hosts. */
  HETCOMM_TOPOLOGY_TEXT = 0,
  /* A JSON document. A file with this document can be the value of HETCOMM_TOPOLOGY, on this
   * machine or another one, or of HETCOMM_LINK_MODEL. The document of a machine also says which
   * NICs each accelerator and NUMA node uses, best first. */
  HETCOMM_TOPOLOGY_JSON = 1,
  /* A picture, as an SVG document: the tree of a machine, or the rates of all pairs of hosts.
   * Version 1.0 removes this format: libhetcomm_plan draws the picture from the JSON. */
  HETCOMM_TOPOLOGY_SVG = 2
};

/* Describes the machine that |context| uses: this host, or the file of HETCOMM_TOPOLOGY. The
 * library reads it once: in the first call, or when the context is created if HETCOMM_NIC or
 * HETCOMM_FABRIC is set. Reading takes up to about 20 ms. |format| is one of HETCOMM_TOPOLOGY_*.
 * Writes at most |capacity| bytes with the closing NUL to |out_text|, and the size that the whole
 * text needs, with its NUL, to |*out_size|. |out_text| may be NULL when |capacity| is 0.
 *   INVALID_ARGUMENT   There is no such format, or one of these variables or the file is malformed.
 *   NOT_FOUND          One of the variables names something that the machine lacks, or there is no
 *                      such file.
 *   UNSUPPORTED        The file needs hwloc, which is not installed, or is of another version.
 *   PERMISSION_DENIED  The file cannot be read, or everybody can write it.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_context_topology(hetcomm_context_t* context, int32_t format, size_t capacity,
                         char* out_text, size_t* out_size) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_TOPOLOGY_H_ */
