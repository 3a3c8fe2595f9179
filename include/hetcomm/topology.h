/* Tells how this machine is built, and which NICs the data of each accelerator uses; and what the
 * links between hosts carry.                                                                    */
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
  /* The tree, or the rates of all pairs of hosts, as a picture: an SVG document. */
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

/* Infers a link model from what was measured between hosts, and writes it in a form of
 * HETCOMM_TOPOLOGY_*. |measurements| is a JSON document; topology/README.md describes it, and
 * hetcomm_bench links makes one. The same measurements give the same model everywhere. |capacity|,
 * |out_text| and |*out_size| are as for hetcomm_context_topology. INVALID_ARGUMENT: there is no
 * such format, or the measurements are malformed or lack something; the text names it.
 * UNSUPPORTED: they are of another version. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_link_model_infer(const char* measurements, int32_t format, size_t capacity, char* out_text,
                         size_t* out_size) HETCOMM_NOEXCEPT;

/* One transfer between two hosts of a link model. */
typedef struct hetcomm_link_ends {
  /* Label of the host that sends. */
  const char* from_host;
  /* NIC that it uses. NULL: its first one. */
  const char* from_nic;
  /* Label of the host that receives. */
  const char* to_host;
  /* NIC that it uses. NULL: its first one. */
  const char* to_nic;
} hetcomm_link_ends_t;

/* Tells at which rate each of |count| transfers goes, in bytes per second, while all of them go on
 * at once: the shares of what they have in common are max-min fair. |model| is a link model as
 * JSON. INVALID_ARGUMENT: it is malformed, an array or a host is NULL, or |count| is above 65536.
 * UNSUPPORTED: it is of another version. NOT_FOUND: it lacks a host or a NIC; the text names it.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_link_model_rates(const char* model, size_t count, const hetcomm_link_ends_t* transfers,
                         uint64_t* out_bytes_per_s) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_TOPOLOGY_H_ */
