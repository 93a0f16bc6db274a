//! Tests of machines that act by themselves while they are provisioned.

use super::*;

impl Node {
    /// What runs on the machine, start after start.
    pub(super) async fn run(&self, yard: &Yard) {
        let mut starts = 0;
        let mut agent: Option<Agent> = None;
        let mut ghost: Option<Agent> = None;
        let mut done = HashSet::new();
        loop {
            tokio::time::sleep(Duration::from_millis(3)).await;
            let boots = self.machine.boots();
            if !self.machine.is_on() || boots.len() != starts {
                ghost = agent.take().or(ghost);
            }
            if !self.machine.is_on() {
                continue;
            }
            if boots.len() != starts {
                starts = boots.len();
                agent = self.start(yard, boots.last().and_then(|boot| boot.device)).await;
                if let (Some(ghost), Some(agent)) = (&ghost, &agent)
                    && ghost.generation < agent.generation
                {
                    self.is_shut_out(yard, ghost).await;
                }
            }
            let Some(alive) = &mut agent else { continue };
            match yard.step(&alive.session, &alive.after).await {
                Ok(None) | Err(StatusCode::SERVICE_UNAVAILABLE) => {}
                Err(_) => agent = None,
                Ok(Some(step)) => {
                    assert_eq!(step.generation, alive.generation, "a step of another boot");
                    assert!(!done.contains(&step.id), "step {} was done and acknowledged before", step.id);
                    let Some(outcome) = self.work(yard, &step, starts).await else { continue };
                    let body = serde_json::to_value(&outcome).unwrap();
                    let (code, _) = yard.call(Method::POST, "/agent/v1/result", &alive.session, &body).await;
                    if code.is_success() {
                        alive.after = step.id.clone();
                        done.insert(step.id);
                        if matches!(step.action, AgentAction::PowerOff) {
                            self.machine.power(PowerCommand::Off);
                        }
                    } else {
                        agent = None;
                    }
                }
            }
        }
    }

    /// Starts from the network or from the disk.
    pub(super) async fn start(&self, yard: &Yard, device: Option<BootDevice>) -> Option<Agent> {
        let known = yard.index.by_mac(self.mac.parse().unwrap());
        let intent = known.as_ref().and_then(|host| host.intent.clone());
        let ramdisk = intent.filter(|intent| intent.target == BootTarget::Ramdisk);
        let (Some(BootDevice::Pxe), Some(intent), Some(host)) = (device, ramdisk, known) else {
            self.systems.fetch_add(1, Ordering::SeqCst);
            return None;
        };
        let token = yard.tokens.mint(&host.uid, intent.generation).unwrap();
        let call = OpenSession {
            token,
            version: "0".into(),
            mac_addresses: vec![self.mac.clone()],
            uuid: String::new(),
            uefi: true,
        };
        let call = serde_json::to_value(call).unwrap();
        let (code, body) = yard.call(Method::POST, "/agent/v1/session", "", &call).await;
        if code != StatusCode::OK {
            return None;
        }
        let session: AgentSession = serde_json::from_slice(&body).unwrap();
        Some(Agent { session: session.session, generation: session.generation, after: String::new() })
    }

    /// The agent of an older boot learns nothing and changes nothing.
    pub(super) async fn is_shut_out(&self, yard: &Yard, ghost: &Agent) {
        let path = format!("/agent/v1/step?after={}", ghost.after);
        let (code, _) = yard.call(Method::GET, &path, &ghost.session, &serde_json::Value::Null).await;
        assert_eq!(code, StatusCode::UNAUTHORIZED);
        let before = self.intent(yard).await;
        for step in before.iter().flat_map(|intent| &intent.spec.steps) {
            let late = StepOutcome { step: step.id.clone(), succeeded: true, ..StepOutcome::default() };
            let body = serde_json::to_value(late).unwrap();
            let (code, _) = yard.call(Method::POST, "/agent/v1/result", &ghost.session, &body).await;
            assert_eq!(code, StatusCode::UNAUTHORIZED, "a late result of an older boot");
        }
    }

    pub(super) async fn intent(&self, yard: &Yard) -> Option<BootIntent> {
        Api::<BootIntent>::namespaced(yard.client.clone(), "rack").get_opt(&self.name).await.unwrap()
    }

    /// Does a step; `None` when the machine stopped in the middle of it.
    pub(super) async fn work(&self, yard: &Yard, step: &AgentStep, start: usize) -> Option<StepOutcome> {
        let mut outcome = StepOutcome { step: step.id.clone(), succeeded: true, ..StepOutcome::default() };
        match &step.action {
            AgentAction::Inspect => {
                let nic = Nic { name: "eth0".into(), mac: self.mac.clone(), pxe: true, ..Nic::default() };
                // Boards without a serial number of their own all have this one.
                let vendor =
                    HardwareSystemVendor { serial_number: "0123456789".into(), ..HardwareSystemVendor::default() };
                outcome.inventory = Some(HardwareDetails {
                    nics: vec![nic],
                    system_vendor: Some(vendor),
                    ..HardwareDetails::default()
                });
            }
            AgentAction::Erase { .. } => self.change(yard, step, start, &["preparing", "deprovisioning"]).await?,
            AgentAction::WriteImage { digest, .. } => {
                assert_eq!(digest, DIGEST);
                self.change(yard, step, start, &["provisioning"]).await?;
            }
            AgentAction::WriteConfigDrive { .. } | AgentAction::SetBootEntry { .. } => {
                assert_eq!(*self.disk.lock().unwrap(), Disk::Image, "{} without an image", step.id);
            }
            AgentAction::Kexec { .. } | AgentAction::Reboot | AgentAction::PowerOff | AgentAction::CollectLogs => {}
        }
        Some(outcome)
    }

    /// Changes the disk, which takes its time.
    pub(super) async fn change(&self, yard: &Yard, step: &AgentStep, start: usize, states: &[&str]) -> Option<()> {
        let hosts = Api::<BareMetalHost>::namespaced(yard.client.clone(), "rack");
        let host = hosts.get(&self.name).await.unwrap();
        let state = host.status.unwrap_or_default().provisioning.state.as_str();
        assert!(states.contains(&state), "{step:?} while {state}");
        let writes = matches!(step.action, AgentAction::WriteImage { .. });
        let (what, then) = if writes { ("write", Disk::Image) } else { ("erase", Disk::Blank) };
        assert!(!(writes && *self.disk.lock().unwrap() == Disk::Old), "written over what was not erased");
        self.changes.lock().unwrap().push(format!("{what} while {state}"));
        *self.disk.lock().unwrap() = Disk::Torn;
        if writes && self.faint.swap(false, Ordering::SeqCst) {
            self.machine.power(PowerCommand::Off);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        if !self.machine.is_on() || self.machine.boots().len() != start {
            return None;
        }
        *self.disk.lock().unwrap() = then;
        Some(())
    }

    pub(super) fn changes(&self) -> Vec<String> {
        self.changes.lock().unwrap().clone()
    }

    pub(super) fn asked(&self) -> Vec<PowerAction> {
        self.asked.lock().unwrap().clone()
    }

    pub(super) fn disk(&self) -> Disk {
        self.disk.lock().unwrap().clone()
    }
}
