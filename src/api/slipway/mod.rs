//! `slipway.dev/v1alpha1`: what Slipway shows and keeps beside the published kinds.
//!
//! [`image`], [`network`], [`reservation`] and [`dhcp_lease`] are for people. A [`boot_intent`] is what a host and its agent go by: the
//! [`steps`] of its agent, and with it the [`registration`] of its host. [`host_keys`] are annotations of hosts.

mod boot_intent;
mod dhcp_lease;
mod host_keys;
mod image;
mod network;
mod registration;
mod reservation;
mod steps;

pub use boot_intent::{BootIntent, BootIntentSpec, BootIntentStatus, BootTarget, FINALIZER_INTENT, SessionStatus};
pub use dhcp_lease::{DHCPLease, DHCPLeaseSpec, LABEL_HOST, LABEL_HOST_NAMESPACE, LABEL_NETWORK};
pub use host_keys::{
    ANNOTATION_DISCOVERED, ANNOTATION_FIRST_BOOT, ANNOTATION_MOVED_TO, ANNOTATION_NETWORK, ANNOTATION_REPORTED,
    ANNOTATION_VISIT, DISCOVERED_PENDING,
};
pub use image::{Image, ImageContent, ImagePhase, ImageSpec, ImageStatus};
pub use network::{Network, NetworkSpec, NetworkStatus};
pub use registration::{ANNOTATION_REGISTRATION, Registration};
pub use reservation::{RESERVATION_OF_FILE, Reservation, ReservationSpec, ReservationStatus};
pub use steps::{IntentStep, StepAction, StepProgress, StepResult};
