// Declares the variables for addresses, TLS, and connection timeouts.
#pragma once

#include "src/system/variable.h"

namespace hetcomm::variable {

inline constexpr Variable kInterface(
    kText, kNoFile, "HETCOMM_INTERFACE", "", nullptr,
    "Network interfaces to use: names, name prefixes with '*', or subnets "
    "('eth0,ib*,10.0.0.0/8'); "
    "empty means the first that is up, loopback last and bridges of containers not at all.");
inline constexpr Variable kPorts(
    kText, kNoFile, "HETCOMM_PORTS", "", nullptr,
    "Ports that ranks listen on, such as '20000-20999', the store's apart; empty means any.");
inline constexpr Variable kTcpBindFamily(kChoice, kNoFile, "HETCOMM_FAMILY", "any", "any|ipv4|ipv6",
                                         "Address family of all connections.");
inline constexpr Variable kTls(
    kChoice, kNoFile, "HETCOMM_TLS", "off", "off|on",
    "Whether connections over the network (tcp, control plane, store) are made by TLS 1.3.");
inline constexpr Variable kTlsCertificate(
    kText, kTrust, "HETCOMM_TLS_CERTIFICATE", "", nullptr,
    "PEM file with this process's certificate, and those between it and the authority.");
inline constexpr Variable kTlsKey(
    kText, kTrust, "HETCOMM_TLS_KEY", "", nullptr,
    "PEM file with the certificate's private key, without a pass phrase.");
inline constexpr Variable kTlsCa(
    kText, kTrust, "HETCOMM_TLS_CA", "", nullptr,
    "PEM file with the authorities whose certificates are accepted; no others are.");
inline constexpr Variable kTlsServerName(
    kText, kTrust, "HETCOMM_TLS_SERVER_NAME", "", nullptr,
    "Name (or IP address) that the certificate of every peer has to carry; empty means any.");
inline constexpr Variable kRequireTls(
    kChoice, kNoFile, "HETCOMM_REQUIRE_TLS", "off", "off|on",
    "Refuses whatever would send over the network without protection: needs HETCOMM_TLS=on, and "
    "leaves out transports that cannot be protected.");
inline constexpr Variable kShmUsers(
    kChoice, kTrust, "HETCOMM_SHM_USERS", "same", "same|any",
    "Whose processes shm connects to: those of the same effective user, or of any who have proved "
    "the job secret.");
inline constexpr Variable kBootstrapTimeout(
    kDuration, kNoFile, "HETCOMM_BOOTSTRAP_TIMEOUT", "300s", nullptr,
    "How long ranks wait for each other when a communicator is created; 0 means the default.",
    zero_is_default());
inline constexpr Variable kDetectionTime(
    kDuration, kNoFile, "HETCOMM_DETECTION_TIME", "10s", nullptr,
    "Within this time a peer that the network has cut off is declared lost, and a connection that "
    "was cut is replaced.",
    at_least(10 * kMs));

inline constexpr const Variable* kNetVariables[] = {
    &kInterface, &kPorts,         &kTcpBindFamily, &kTls,      &kTlsCertificate,   &kTlsKey,
    &kTlsCa,     &kTlsServerName, &kRequireTls,    &kShmUsers, &kBootstrapTimeout, &kDetectionTime};

}  // namespace hetcomm::variable
