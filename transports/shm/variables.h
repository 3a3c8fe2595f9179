// Declares the configuration variables of the shm transport.
#pragma once

#include "src/system/variable.h"

namespace hetcomm::variable {

inline constexpr Variable kShmRingBytes(
    kSize, kNoFile, "HETCOMM_SHM_RING_BYTES", "256K", nullptr,
    "Bytes of the shared ring that bulk data of one direction of a pair flows through; the "
    "smaller "
    "of both sides' counts.",
    between(64 * kKi, kGi));
inline constexpr Variable kShmChunk(kSize, kNoFile, "HETCOMM_SHM_CHUNK", "32K", nullptr,
                                    "Piece in which bulk data is copied through the shared ring.",
                                    between(4 * kKi, kMi));
inline constexpr Variable kShmBulk(
    kChoice, kNoFile, "HETCOMM_SHM_BULK", "auto", "auto|copy|read",
    "How bulk data, and eager messages from 16 KiB on, cross shared memory: copied through the "
    "ring, read by the receiver from the sender's memory where it calls the library often enough, "
    "or whichever was measured to be faster.");
inline constexpr Variable kShmEager(
    kSize, kNoFile, "HETCOMM_SHM_EAGER", "128K", nullptr,
    "Messages up to this size are sent over shm without waiting for their receive.");
inline constexpr Variable kShmMap(
    kChoice, kNoFile, "HETCOMM_SHM_MAP", "on", "off|on",
    "Whether ranks of one host map registered memory that grants them every access; off: each "
    "access goes through the owner, which checks it.");

inline constexpr const Variable* kTransportsShmVariables[] = {&kShmRingBytes, &kShmChunk, &kShmBulk,
                                                              &kShmEager, &kShmMap};

}  // namespace hetcomm::variable
