/* hetcomm: moves tensors between accelerators that do not share a vendor, a host or a cluster.
 *
 * Conventions. These rules hold for every function unless its comment says otherwise.
 *
 * Results    A function returns hetcomm_status_t: 0 is success, 1 is pending, and a negative value
 *            is a failure. After a failure hetcomm_last_error() has a text for people. A void
 *            function cannot fail.
 *
 * Errors     Every function that returns a status may return these. Comments name them only where
 *            they mean more than this.
 *              INVALID_ARGUMENT  A required pointer is NULL, a handle is invalid or was destroyed,
 *                                a value is not one of its enumeration, or struct_size is not the
 *                                structure's size in any version.
 *              UNSUPPORTED       An options structure sets a field that this library is too old to
 *                                know.
 *              OUT_OF_MEMORY     Host memory is exhausted.
 *              FORKED            The handle belongs to the parent process.
 *              INTERNAL          The library has a bug.
 *            The library recognizes most destroyed handles, not all: a caller must not rely on it.
 *
 * Outputs    Output arguments come last and are named out_*. A function writes them only when it
 *            succeeds. They must not be NULL unless the comment says that they may be.
 *
 * Handles    Handles are opaque. The comment of a function says when it gives one to the caller, as
 *            *_create functions do. The matching *_destroy function takes it back and accepts NULL.
 *            Other returned pointers are borrowed and live as long as the object that they came
 *            from.
 *
 * Options    An options structure starts with struct_size, which the caller sets to its sizeof. A
 *            zero field means the default, and a NULL structure means all defaults. New fields are
 *            only ever appended. The library copies the structure and the arrays in it before the
 *            call returns.
 *
 * Queries    A query takes the object, then an index or a name, then its outputs. It does not
 *            communicate with other ranks.
 *              values      Each value has an output argument of its own.
 *              structures  The caller sets struct_size to the sizeof the structure. The library
 *                          writes that many bytes: fields that an older caller lacks are left out,
 *                          and fields that an older library lacks become 0.
 *              lists       The caller passes |capacity|, the number of entries that its array has
 *                          room for, and sets struct_size in the first entry, which counts for all.
 *                          The library writes at most |capacity| entries, then their total number.
 *                          A NULL array with a |capacity| of 0 asks only for the number.
 *              texts       |capacity| counts bytes with the closing NUL. The library cuts a longer
 *                          text, closes it, and writes the size that the whole text needs. A NULL
 *                          array with a |capacity| of 0 asks only for the size.
 *              indices     Objects are numbered from 0. A query of a number past the last object
 *                          returns OUT_OF_RANGE.
 *            hetcomm_memory_export never cuts its bytes, since cut bytes would be useless.
 *
 * Strings    Strings are UTF-8 and end with NUL. The library copies them before the call returns.
 *
 * Units      Names of arguments and fields end with their unit: _bytes, _ns. A |length|, |offset|,
 *            |size| or |capacity| of memory counts bytes.
 *
 * Threads    The last words of a comment say which threads may call a function.
 *              [any-thread]  Several threads may call it at once, with the same handles too.
 *              [serial]      One thread at a time may be in a [serial] call on the first handle
 *                            argument. Calls that are [any-thread] may run beside it.
 *              [exclusive]   No other call may use the first handle argument while this one runs,
 *                            nor after it has succeeded, since it ends the handle.
 *
 * Callbacks  A callback must not throw, and must not call hetcomm unless its comment allows it. The
 *            library passes |user_data| on as it is: it never reads, copies or frees what that
 *            points to. The comment of a callback says which threads call it, and how long
 *            |user_data| has to live.
 *
 * Fork       A forked child may not use handles of its parent. Calls return FORKED, void functions
 *            do nothing, and a query that only reads what the handle holds may still succeed.
 *
 * C++        No exception crosses this boundary. */
#ifndef HETCOMM_HETCOMM_H_
#define HETCOMM_HETCOMM_H_

#include <hetcomm/bootstrap.h>
#include <hetcomm/collective.h>
#include <hetcomm/communicator.h>
#include <hetcomm/context.h>
#include <hetcomm/datatype.h>
#include <hetcomm/info.h>
#include <hetcomm/memory.h>
#include <hetcomm/onesided.h>
#include <hetcomm/operation.h>
#include <hetcomm/p2p.h>
#include <hetcomm/queue.h>
#include <hetcomm/request.h>
#include <hetcomm/reshard.h>
#include <hetcomm/status.h>
#include <hetcomm/stream.h>
#include <hetcomm/topology.h>

#endif /* HETCOMM_HETCOMM_H_ */
