// Declares the configuration variables that concern transports and that core reads too.
#pragma once

#include "src/system/variable.h"

namespace hetcomm::variable {

inline constexpr Variable kTransports(
    kText, kNoFile, "HETCOMM_TRANSPORTS", "", nullptr,
    "Transports that may be used, such as 'shm,tcp', or with ^ those that may not, such as "
    "'^shm'; empty means all usable ones.");
inline constexpr Variable kRails(
    kInteger, kNoFile, "HETCOMM_RAILS", "4", nullptr,
    "Connections of one kind, over a network interface each, that a pair may share its bulk data "
    "among: that of the host, and that of each device. If it is set, devices also use NICs that "
    "are the first ones of other devices.",
    between(1, 64));
inline constexpr Variable kDevicePath(
    kChoice, kNoFile, "HETCOMM_DEVICE_PATH", "auto", "auto|direct|staged",
    "How device memory goes over a network: by the interface itself where a write that was read "
    "back has shown that it can, else staged through the host; or only so.");
inline constexpr Variable kRdmaNic(
    kText, kNoFile, "HETCOMM_RDMA_NIC", "", nullptr,
    "RDMA devices to use, best first: 'mlx5_0', 'mlx5_1:1' (with port), 'rxe0,rxe1'; empty means "
    "all active ports, the fastest first. At most HETCOMM_RAILS of them share the load.");

inline constexpr const Variable* kTransportsVariables[] = {&kTransports, &kRails, &kDevicePath,
                                                           &kRdmaNic};

}  // namespace hetcomm::variable
