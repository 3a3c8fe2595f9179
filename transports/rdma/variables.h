// Declares the configuration variables of the rdma transport.
#pragma once

#include "src/system/variable.h"

namespace hetcomm::variable {

inline constexpr Variable kRdmaConnect(
    kChoice, kNoFile, "HETCOMM_RDMA_CONNECT", "exchange", "exchange|cm",
    "How RDMA connections find their path: both sides tell each other their addresses, or rdma_cm "
    "(librdmacm) does it. Alike on all ranks.");
inline constexpr Variable kRdmaGidIndex(
    kText, kNoFile, "HETCOMM_RDMA_GID_INDEX", "auto", nullptr,
    "Index of the port's address (GID); auto prefers RoCE v2 over IPv4, then IPv6, then RoCE v1.");
inline constexpr Variable kRdmaMtu(
    kChoice, kNoFile, "HETCOMM_RDMA_MTU", "auto", "auto|256|512|1024|2048|4096",
    "Path MTU of RDMA connections; auto is the active MTU of the ports.");
inline constexpr Variable kRdmaTrafficClass(kInteger, kNoFile, "HETCOMM_RDMA_TRAFFIC_CLASS", "0",
                                            nullptr, "Traffic class of RDMA packets.",
                                            at_most(255));
inline constexpr Variable kRdmaTimeout(
    kDuration, kNoFile, "HETCOMM_RDMA_TIMEOUT", "500ms", nullptr,
    "How long the device waits for an acknowledgement before it sends again; rounded up to 4.096 "
    "us "
    "times a power of two.");
inline constexpr Variable kRdmaRetries(
    kInteger, kNoFile, "HETCOMM_RDMA_RETRIES", "6", nullptr,
    "How often the device sends again before it gives a connection up. Soft-RoCE never does, and "
    "has "
    "the time of all tries for one.",
    at_most(7));
inline constexpr Variable kRdmaQueuePairs(kInteger, kNoFile, "HETCOMM_RDMA_QUEUE_PAIRS", "4096",
                                          nullptr,
                                          "Most RDMA connections of a communicator at a time.",
                                          between(1, kMi));
inline constexpr Variable kRdmaEager(
    kSize, kNoFile, "HETCOMM_RDMA_EAGER", "16K", nullptr,
    "Messages up to this size are sent over rdma without waiting for their receive.");
inline constexpr Variable kRdmaSlice(
    kSize, kNoFile, "HETCOMM_RDMA_SLICE", "256K", nullptr,
    "Largest single RDMA write or read; four of them may be under way on a connection.",
    between(4 * kKi, 16 * kMi));
inline constexpr Variable kRdmaCacheBytes(
    kSize, kNoFile, "HETCOMM_RDMA_CACHE_BYTES", "1G", nullptr,
    "User memory that stays registered for the next operation; 0 keeps none.");
inline constexpr Variable kRdmaStrictKeys(
    kChoice, kNoFile, "HETCOMM_RDMA_STRICT_KEYS", "off", "off|on",
    "Whether what a peer got a key of is deregistered as soon as the peer needs it no more: costs "
    "a "
    "registration for each use.");

inline constexpr const Variable* kTransportsRdmaVariables[] = {
    &kRdmaConnect, &kRdmaGidIndex,   &kRdmaMtu,        &kRdmaTrafficClass,
    &kRdmaTimeout, &kRdmaRetries,    &kRdmaQueuePairs, &kRdmaEager,
    &kRdmaSlice,   &kRdmaCacheBytes, &kRdmaStrictKeys};

}  // namespace hetcomm::variable
