// Declares the variables that control how ranks find each other.
#pragma once

#include "src/system/variable.h"

namespace hetcomm::variable {

inline constexpr Variable kStorePort(
    kInteger, kNoFile, "HETCOMM_STORE_PORT", "0", nullptr,
    "Port of rank 0's bootstrap store; 0 means MASTER_PORT or one of the 16 after it.",
    at_most(65535));
inline constexpr Variable kJob(
    kText, kNoFile, "HETCOMM_JOB", "", nullptr,
    "Name of the job, alike on all ranks, by which two jobs on one port are told apart; empty "
    "means TORCHELASTIC_RUN_ID or what the launcher calls the job.");
inline constexpr Variable kSecret(kSecretText, kNoFile, "HETCOMM_SECRET", "", nullptr,
                                  "Job secret that every connection has to prove.");
inline constexpr Variable kSecretFile(
    kText, kTrust, "HETCOMM_SECRET_FILE", "", nullptr,
    "File that holds the job secret; read when HETCOMM_SECRET is unset.", {}, &kSecret);
inline constexpr Variable kRequireSecret(
    kChoice, kNoFile, "HETCOMM_REQUIRE_SECRET", "off", "off|on",
    "Refuses a job of several ranks that has no configured secret.");
inline constexpr Variable kSmallJob(
    kInteger, kNoFile, "HETCOMM_SMALL_JOB", "128", nullptr,
    "Up to this many ranks each tells all others everything of itself when a communicator is "
    "created; beyond it they ask each other at first contact. Alike on all ranks.",
    at_most(1 << 20));

inline constexpr const Variable* kBootstrapVariables[] = {
    &kStorePort, &kJob, &kSecret, &kSecretFile, &kRequireSecret, &kSmallJob};

}  // namespace hetcomm::variable
