// Defines the sizes that libhetcomm's output structures had in their first release
// (src/wall/output.h).
#pragma once

#include <cstddef>

#include <hetcomm/hetcomm.h>

#include "src/wall/output.h"

namespace hetcomm::capi {

template <>
inline constexpr size_t kFirstSize<hetcomm_counters_t> = 168;
template <>
inline constexpr size_t kFirstSize<hetcomm_device_info_t> = 96;
template <>
inline constexpr size_t kFirstSize<hetcomm_layout_facts_t> = 88;
template <>
inline constexpr size_t kFirstSize<hetcomm_link_t> = 24;
template <>
inline constexpr size_t kFirstSize<hetcomm_link_resource_t> = 152;
template <>
inline constexpr size_t kFirstSize<hetcomm_remote_memory_info_t> = 24;
template <>
inline constexpr size_t kFirstSize<hetcomm_reshard_facts_t> = 64;
template <>
inline constexpr size_t kFirstSize<hetcomm_transport_info_t> = 232;
template <>
inline constexpr size_t kFirstSize<hetcomm_variable_info_t> = 32;

}  // namespace hetcomm::capi
