/* hetcomm: moves tensors between accelerators that do not share a vendor, a host or a cluster.
 *
 * Conventions. They hold for every function unless its comment says otherwise.
 *
 *  Result    hetcomm_status_t: 0 success, 1 pending, < 0 failure, with a text for people in
 *            hetcomm_last_error(). A void function cannot fail.
 *  Outputs   come last, are named out_*, and are written only on success. Structures that may
 *            grow start with struct_size, which the caller sets to the sizeof before the call.
 *  Handles   opaque; *_create gives the caller one, the matching *_destroy takes it back and
 * accepts NULL. Other returned pointers are borrowed and live as long as what they came from.
 *  Options   start with struct_size; a zero field means the default; a NULL struct means all
 *            defaults. Fields are only ever appended.
 *  Strings   UTF-8, closed by NUL, copied before the call returns.
 *  Units     are in the names: _bytes, _ns.
 *  Threads   [any-thread] safe from any thread at any time; [serial] one thread at a time per
 *            handle.
 *  Fork      a forked child may not use the parent's handles: calls return FORKED.
 *  C++       no exception crosses this boundary.                                               */
#ifndef HETCOMM_HETCOMM_H_
#define HETCOMM_HETCOMM_H_

#include <hetcomm/bootstrap.h>
#include <hetcomm/collective.h>
#include <hetcomm/communicator.h>
#include <hetcomm/context.h>
#include <hetcomm/info.h>
#include <hetcomm/memory.h>
#include <hetcomm/onesided.h>
#include <hetcomm/operation.h>
#include <hetcomm/p2p.h>
#include <hetcomm/request.h>
#include <hetcomm/status.h>

#endif /* HETCOMM_HETCOMM_H_ */
