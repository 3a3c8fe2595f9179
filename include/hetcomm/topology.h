/* Tells how this machine is built, and which NICs the data of each accelerator uses. Link models
 * are inferred, asked and drawn by libhetcomm_plan (hetcomm_plan/links.h).                       */
#ifndef HETCOMM_TOPOLOGY_H_
#define HETCOMM_TOPOLOGY_H_

#include <hetcomm/context.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Forms in which a machine is written, or a link model. */
enum {
  /* Lines of UTF-8 for people. A machine: a tree of NUMA nodes, PCIe switches, accelerators and
   * NICs, a matrix of distances, and a legend. A link model: clusters, hosts, paths, and the rates
   * of pairs. */
  HETCOMM_TOPOLOGY_TEXT = 0,
  /* A JSON document. A file with it can be the value of HETCOMM_TOPOLOGY, on this machine or on
   * another one, or of HETCOMM_LINK_MODEL. That of a machine also says which NICs each accelerator
   * and NUMA node uses, best first. */
  HETCOMM_TOPOLOGY_JSON = 1,
  /* The tree, or the rates of all pairs of hosts, as a picture: an SVG document. It goes with
   * version 1.0: libhetcomm_plan draws it from the JSON. */
  HETCOMM_TOPOLOGY_SVG = 2
};

/* Describes the machine that |context| goes by: this host, or the file of HETCOMM_TOPOLOGY. It
 * is read once, which takes up to some 20 ms, by the first call or, where HETCOMM_NIC or
 * HETCOMM_FABRIC is set, when the context is created. |format| is one of HETCOMM_TOPOLOGY_*.
 * Writes at most |capacity| bytes with the closing NUL to |out_text|, and the size that the
 * whole text needs, with its NUL, to |*out_size|. |out_text| may be NULL when |capacity| is 0.
 * INVALID_ARGUMENT: there is no such format, or one of these variables or the file is malformed;
 * NOT_FOUND: one of the variables names something that the machine lacks, or there is no such
 * file; UNSUPPORTED: the file needs hwloc, which is not installed, or is of another version;
 * PERMISSION_DENIED: the file cannot be read, or everybody can write it. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_context_topology(hetcomm_context_t* context, int32_t format, size_t capacity,
                         char* out_text, size_t* out_size) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_TOPOLOGY_H_ */
