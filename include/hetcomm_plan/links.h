/* Declares functions that infer, draw and query link models, which have the rates and latencies
 * between hosts. topology/README.md describes the JSON documents that they read and write. */
#ifndef HETCOMM_PLAN_LINKS_H_
#define HETCOMM_PLAN_LINKS_H_

#include <hetcomm_plan/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Infers a link model from measurements between hosts, and writes it in |form|. |measurements| is a
 * JSON document of at most 8 MiB, such as `hetcomm_bench links` writes. INVALID_ARGUMENT: |form| is
 * unknown, or the measurements are malformed or incomplete. UNSUPPORTED: they have a different
 * version. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_links_infer(const char* measurements, int32_t form, size_t capacity, char* out_text,
                    size_t* out_size) HETCOMM_NOEXCEPT;

/* Writes |model|, a link model as JSON of at most 8 MiB, in |form|. TEXT lists clusters, hosts,
 * paths and rates. JSON is the document in a fixed order. SVG shows the rates of all pairs of
 * hosts. INVALID_ARGUMENT: |form| is unknown, or the model is malformed. UNSUPPORTED: it has a
 * different version. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_links_draw(const char* model, int32_t form, size_t capacity, char* out_text,
                   size_t* out_size) HETCOMM_NOEXCEPT;

/* One transfer between two hosts of a link model. */
typedef struct hetcomm_link_ends {
  /* Label of the sending host. */
  const char* from_host;
  /* NIC of the sending host. NULL: its first one. */
  const char* from_nic;
  /* Label of the receiving host. */
  const char* to_host;
  /* NIC of the receiving host. NULL: its first one. */
  const char* to_nic;
} hetcomm_link_ends_t;

/* Computes the rate of each of |count| transfers, in bytes per second, if all of them run at the
 * same time. Transfers that cross the same resource get max-min fair shares of it. |model| is a
 * link model as JSON of at most 8 MiB. INVALID_ARGUMENT: the model is malformed, an array or a host
 * is NULL, or |count| is above 65536. UNSUPPORTED: the model has a different version. NOT_FOUND:
 * the model does not contain a host or a NIC; the text names it. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_links_rates(const char* model, size_t count, const hetcomm_link_ends_t* transfers,
                    uint64_t* out_bytes_per_s) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_PLAN_LINKS_H_ */
