// A forked child (a data loader, say) inherits every descriptor. While it lives its kernel keeps
// the connections of a parent that died, and peers would not learn of the death: so the child
// closes them, without a word on the wire.
#pragma once

namespace hetcomm {

// |fd|, when it is a socket, is closed in children that are forked from now on, as long as it is
// that socket. [any-thread]
void close_in_forked_children(int fd);
// No longer. [any-thread]
void forget_in_forked_children(int fd);

}  // namespace hetcomm
