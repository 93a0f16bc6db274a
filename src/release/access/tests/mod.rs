//! Credentials and inventories in an appliance's API, in this process. What a host goes through is played.

mod inventory;
mod site;
