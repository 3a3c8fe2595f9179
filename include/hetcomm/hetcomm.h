/* hetcomm: moves tensors between accelerators that may differ in vendor, host and cluster.
 *
 * Conventions. These rules apply to every function unless its comment says otherwise.
 *
 * Results    A function returns hetcomm_status_t: 0 is success, 1 is pending, and a negative value
 *            is a failure. After a failure hetcomm_last_error() returns a human-readable
 *            description, which comments call the text. A void function cannot fail.
 *
 * Errors     Every function that returns a status may return the following codes. A function's
 *            comment lists them only if they have additional meanings there.
 *              INVALID_ARGUMENT  A required pointer is NULL, a handle is invalid or was destroyed,
 *                                a value is not in its enumeration, or struct_size does not match
 *                                any version of the structure.
 *              UNSUPPORTED       An options structure sets a field that was added after this
 *                                version of the library.
 *              OUT_OF_MEMORY     Host memory is exhausted.
 *              FORKED            The handle belongs to the parent process.
 *              INTERNAL          The library has a bug.
 *            The library detects most uses of a destroyed handle, but not all, so callers must not
 *            rely on this.
 *
 * Outputs    Output arguments come last and are named out_*. A function writes them only if it
 *            succeeds. They must not be NULL unless the function's comment allows it.
 *
 * Handles    Handles are opaque. A *_create function returns a handle that the caller owns; the
 *            comments of other functions say so if they do the same. The matching *_destroy
 *            function frees it and accepts NULL. All other returned pointers are borrowed and stay
 *            valid as long as the object that returned them.
 *
 * Options    An options structure starts with struct_size, which the caller sets to its sizeof. A
 *            field that is 0 selects the default, and a NULL structure selects all defaults. New
 *            fields are only ever appended. The library copies the structure and its arrays before
 *            the call returns.
 *
 * Queries    A query takes the object, then an index or a name, then its outputs. It does not
 *            communicate with other ranks.
 *              values      Each value has its own output argument.
 *              structures  The caller sets struct_size to the structure's sizeof. The library
 *                          writes that many bytes: it omits fields that an older caller does not
 *                          have, and zeroes fields that it does not have itself.
 *              lists       The caller passes |capacity|, the number of entries in its array, and
 *                          sets struct_size in the first entry, which applies to all entries. The
 *                          library writes at most |capacity| entries, and reports the total number.
 *                          A NULL array with a |capacity| of 0 requests only the number.
 *              texts       |capacity| is in bytes and includes the terminating NUL. The library
 *                          truncates a longer text, terminates it, and reports the size that the
 *                          full text needs. A NULL array with a |capacity| of 0 requests only the
 *                          size.
 *              indices     Objects are numbered from 0. A query for an index past the last object
 *                          returns OUT_OF_RANGE.
 *            hetcomm_memory_export never truncates its output, because truncated bytes would be
 *            useless.
 *
 * Strings    Strings are NUL-terminated UTF-8. The library copies them before the call returns.
 *
 * Units      Names of arguments and fields end with their unit: _bytes, _ns. A |length|, |offset|,
 *            |size| or |capacity| of memory is in bytes.
 *
 * Threads    The tag at the end of a function's comment says which threads may call it.
 *              [any-thread]  Multiple threads may call it concurrently, even with the same handles.
 *              [serial]      Only one thread at a time may be in a [serial] call on the first
 *                            handle argument. [any-thread] calls may run concurrently with it.
 *              [exclusive]   No other call may use the first handle argument while this one runs.
 *                            After it succeeds, the handle is invalid.
 *
 * Callbacks  A callback must not throw, and must not call hetcomm unless its comment allows it. The
 *            library passes |user_data| through unchanged, and never reads, copies or frees the
 *            data it points to. The comment of a callback says which threads call it, and how long
 *            |user_data| must stay valid.
 *
 * Fork       A forked child must not use handles of its parent. Its calls return FORKED, void
 *            functions do nothing, and a query that only reads data in the handle may still
 *            succeed.
 *
 * C++        No function of the library throws an exception. */
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
