//! The first steps of README and of the installation guide, as a reader types them: their commands are taken from the text.

use std::{fs, path::PathBuf, process::Command};

use libtest_mimic::Trial;

use super::{
    chart::Adopted,
    harness::{AuditLog, Cluster, Namespace, alone, wait_until},
    managed::condition,
};

pub fn trials() -> Vec<Trial> {
    vec![alone("quickstart::works_word_by_word", works_word_by_word)]
}

/// Namespace that the commands install into.
const INSTALLED: &str = "pointsman";
/// Longest time for the commands of a block, in seconds.
const LIMIT: &str = "300";

fn works_word_by_word(ns: &Namespace) {
    let cluster = ns.cluster();
    let _image = Published::under(cluster, concat!("docker.io/pointsman/pointsman:", env!("CARGO_PKG_VERSION")));
    let audit = AuditLog::from_now(cluster);
    let shell = Shell::new(ns);
    let _definitions = Adopted::into(cluster, "pointsman", INSTALLED);
    let installed = Installed(&shell);

    let readme = commands("README.md", "## On Kubernetes", 0);
    assert!(readme[0].starts_with("helm install pointsman charts/pointsman"), "{readme:?}");
    shell.run(&[readme[0].clone()]);
    cluster.kubectl(&["rollout", "status", "deployment/pointsman-controller", "-n", INSTALLED, "--timeout=120s"]);
    shell.run(&readme[1..]);
    wait_for_fleet(ns);
    let shown = shell.run(&readme[2..]);
    let is_row = |line: &str, words: &[&str]| words.iter().all(|word| line.split_whitespace().any(|w| w == *word));
    for words in [["selectorset.pointsman.dev/fleet", "3/3", "True"], ["modelpool.pointsman.dev/llama", "3/3", "True"]]
    {
        assert!(shown.lines().any(|line| is_row(line, &words)), "no row {words:?} in\n{shown}");
    }
    assert!(shown.contains("WorkersFound") || shown.contains("WorkersDiscovered"), "{shown}");

    // `http://fleet:8092`, from a pod beside it.
    let booked =
        shell.run(&["kubectl run client --image=pointsman/pointsman:0.1.0 --restart=Never --rm -i --quiet -- \
         bench --url=http://fleet:8092 --model=llama-3.1-70b --workers=0 --strict --rate=20 --warmup=0 --duration=2"
            .to_owned()]);
    println!("{booked}");

    let guide = commands("docs/kubernetes/install.md", "# Install", 0);
    let test = guide.iter().find(|line| line.starts_with("helm test")).expect("the guide says how to test");
    let said = shell.run(std::slice::from_ref(test));
    assert!(said.contains("Succeeded"), "{said}");
    let asked = shell.run(&commands("docs/kubernetes/install.md", "# Install", 1));
    let answer = asked.lines().find(|line| line.contains("selection_id")).unwrap_or_else(|| panic!("{asked}"));
    assert!(answer.contains(r#""selection_id":"r1""#) && answer.contains(r#""endpoint":"http://"#), "{asked}");

    ns.kubectl(&["delete", "sset,mp", "--all", "--timeout=60s"]);
    drop(installed);
    let requests = audit.requests();
    assert!(!requests.clone().by_service_account(INSTALLED, "pointsman-controller").is_empty());
    let lacks = requests.lacks_of_operators(INSTALLED);
    assert!(lacks.is_empty(), "a right is missing: {:#?}", lacks.0);
}

fn wait_for_fleet(ns: &Namespace) {
    wait_until("the fleet of the quickstart", || {
        let set = ns.object("selectorset", "fleet")?.ok_or("no set")?;
        let pool = ns.object("modelpool", "llama")?.ok_or("no pool")?;
        let stands = ["Available", "CatalogSynced", "PeersWired"].iter().all(|kind| condition(&set, kind) == "True")
            && set["status"]["readyOfReplicas"] == "3/3"
            && pool["status"]["schedulableOfDiscovered"] == "3/3";
        if stands { Ok(()) } else { Err(format!("{}\n{}", set["status"], pool["status"])) }
    });
}

/// Commands of the code block `number` under a heading; those that go on in the next line are one.
#[track_caller]
fn commands(file: &str, heading: &str, number: usize) -> Vec<String> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{file}: {e}"));
    let mut lines = text.lines().skip_while(|line| *line != heading).skip(1);
    let (mut block, mut within, mut found) = (0, false, Vec::<String>::new());
    for line in &mut lines {
        if line.starts_with("```") {
            block += usize::from(within);
            within = !within;
        } else if line.starts_with("## ") && !within || block > number {
            break;
        } else if within && block == number {
            match found.last_mut() {
                Some(last) if last.ends_with('\\') => {
                    last.pop();
                    last.push_str(line.trim_start());
                }
                _ => found.push(line.to_owned()),
            }
        }
    }
    assert!(!found.is_empty(), "{file} has no block {number} under {heading:?}");
    found
}

/// A reader's shell: in the repository, with `kubectl` and `helm` at hand, and a namespace of the reader's own.
struct Shell {
    cluster: &'static Cluster,
    kubeconfig: PathBuf,
}

impl Shell {
    fn new(ns: &Namespace) -> Self {
        let cluster = ns.cluster();
        let kubeconfig = cluster.state().join(format!("run/kubeconfig-{}", ns.name()));
        fs::copy(cluster.kubeconfig(), &kubeconfig).unwrap_or_else(|e| panic!("{}: {e}", kubeconfig.display()));
        let shell = Self { cluster, kubeconfig };
        shell.run(&[format!("kubectl config set-context --current --namespace={}", ns.name())]);
        shell
    }

    /// Runs commands one after the other; what they printed.
    #[track_caller]
    fn run(&self, commands: &[String]) -> String {
        self.try_run(commands).unwrap_or_else(|e| panic!("{e}"))
    }

    fn try_run(&self, commands: &[String]) -> Result<String, String> {
        let mut script = "set -e\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n".to_owned();
        for command in commands {
            script.push_str(command);
            script.push('\n');
            if command.trim_end().ends_with('&') {
                // A reader is slower than a port-forward.
                script.push_str("until (exec 3<>/dev/tcp/127.0.0.1/8092) 2>/dev/null; do sleep 0.1; done\n");
            }
        }
        let bin = self.cluster.programs();
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
        let output = Command::new("timeout")
            .args([LIMIT, "bash", "-c", &script])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("KUBECONFIG", &self.kubeconfig)
            .env("PATH", path)
            .env("KUBECACHEDIR", self.cluster.state().join("kubectl-cache"))
            .env("HELM_CACHE_HOME", self.cluster.state().join("helm/cache"))
            .env("HELM_CONFIG_HOME", self.cluster.state().join("helm/config"))
            .env("HELM_DATA_HOME", self.cluster.state().join("helm/data"))
            .output()
            .map_err(|e| e.to_string())?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(said);
        }
        Err(format!("{script}: {}\n{said}\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        fs::remove_file(&self.kubeconfig).ok();
    }
}

/// What the commands installed outside the trial's namespace; gone when dropped.
struct Installed<'a>(&'a Shell);

impl Drop for Installed<'_> {
    fn drop(&mut self) {
        let outcome = self.0.try_run(&[
            format!("helm uninstall pointsman -n {INSTALLED} --ignore-not-found --wait --timeout=120s"),
            format!("kubectl delete namespace {INSTALLED} --ignore-not-found --timeout=120s"),
        ]);
        if !std::thread::panicking() {
            outcome.unwrap_or_else(|e| panic!("{e}"));
        }
    }
}

/// The program under test under the name that the commands use, as if it had been pulled.
struct Published {
    cluster: &'static Cluster,
    name: &'static str,
}

impl Published {
    #[track_caller]
    fn under(cluster: &'static Cluster, name: &'static str) -> Self {
        cluster.containerd(&["images", "tag", "--force", cluster.image(), name]).unwrap_or_else(|e| panic!("{e}"));
        Self { cluster, name }
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        self.cluster.containerd(&["images", "rm", self.name]).ok();
    }
}
