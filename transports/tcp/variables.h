// Declares the configuration variables of the tcp transport.
#pragma once

#include "src/system/variable.h"

namespace hetcomm::variable {

inline constexpr Variable kTcpEager(
    kSize, kNoFile, "HETCOMM_TCP_EAGER", "16K", nullptr,
    "Messages up to this size are sent over tcp without waiting for their receive.");
inline constexpr Variable kTcpChunk(kSize, kNoFile, "HETCOMM_TCP_CHUNK", "1M", nullptr,
                                    "Piece in which bulk data is framed on a tcp stream.",
                                    between(512, 64 * kMi));
inline constexpr Variable kTcpStreams(
    kInteger, kNoFile, "HETCOMM_TCP_STREAMS", "0", nullptr,
    "Bulk streams of a tcp pair; 0 means one, and more where one does not fill the link.",
    at_most(8));
inline constexpr Variable kTcpSocketBuffer(
    kSize, kNoFile, "HETCOMM_TCP_SOCKET_BUFFER", "0", nullptr,
    "Socket buffer size of bulk streams; 0 leaves it to the kernel.", at_most(kGi));

inline constexpr const Variable* kTransportsTcpVariables[] = {&kTcpEager, &kTcpChunk, &kTcpStreams,
                                                              &kTcpSocketBuffer};

}  // namespace hetcomm::variable
