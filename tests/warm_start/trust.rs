//! How far ranks are believed, where it is shown, and what `--kv-stale-after` does.

use serde_json::{Value, json};

use super::{
    program::{Selector, wait_for},
    rig::{Traffic, blocking, engine, register},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_whose_engine_is_out_of_reach_earns_no_credit() {
    let engine = engine(false).await;
    let directory = tempfile::tempdir().unwrap();
    let selector = {
        let engine = std::sync::Arc::clone(&engine);
        blocking(move || {
            let selector = Selector::start(directory.path(), &["--kv-stale-after", "500ms"], &[]);
            register(&selector, 1, &engine);
            wait_for("the subscription", || (engine.stats()[0].subscribers > 0).then_some(()));
            (selector, directory)
        })
        .await
    };
    let traffic = Traffic::start(&[std::sync::Arc::clone(&engine)]);
    traffic.go_on(20).await;
    traffic.stop().await;
    // A chain that fits and is the newest.
    let prompt: Vec<u32> = (0..9).collect();
    let request = pointsman::engine::CompletionRequest { prompt: prompt.clone(), max_tokens: 1, ..Default::default() };
    engine.complete(request).unwrap().finish().await.unwrap();
    let query = json!({"model_name": "m", "token_ids": prompt});
    let overlap = {
        let query = query.clone();
        move |selector: &Selector, path: &str| selector.call("POST", path, Some(&query)).1["workers"][0].clone()
    };
    blocking(move || {
        let (selector, _directory) = &selector;
        let row = wait_for("the blocks", || {
            let row = overlap(selector, "/overlap_scores?trust=true");
            (row["device_blocks"] == 2).then_some(row)
        });
        assert_eq!(row["trust"], "complete", "{row}");
        assert!(row["trust_age_seconds"].as_f64().unwrap() >= 0.0);
        assert_eq!(overlap(selector, "/overlap_scores")["trust"], Value::Null, "only where it is asked for");
        let workers = selector.get("/workers?trust=true");
        assert_eq!(
            (&workers[0]["trust"][0]["dp_rank"], &workers[0]["trust"][0]["trust"]),
            (&json!(0), &json!("complete"))
        );
        assert_eq!(selector.get("/workers")[0]["trust"], Value::Null);
        assert_eq!(selector.get("/listeners")[0]["trust"], "complete");
        let metrics = |selector: &Selector| {
            let answer = selector.send("GET", "/metrics", None).unwrap();
            String::from_utf8(answer.body).unwrap()
        };
        assert!(metrics(selector).contains("pointsman_events_ranks{trust=\"complete\"} 1"));
        // The engine is gone, and whether it holds the blocks nobody can say.
        drop(engine);
        let row = wait_for("staleness", || {
            let row = overlap(selector, "/overlap_scores?trust=true");
            (row["trust"] == "stale").then_some(row)
        });
        assert_eq!(row["device_blocks"], 0, "{row}");
        let picked = selector.call("POST", "/select", Some(&query)).1;
        assert_eq!(picked["overlap"]["longest_matched"], 0, "{picked}");
        assert!(metrics(selector).contains("pointsman_events_ranks{trust=\"stale\"} 1"));
    })
    .await;
}
