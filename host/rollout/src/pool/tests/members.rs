//! Who is asked, and for which version.

use super::*;

#[tokio::test]
async fn tokens_of_unknown_weights_are_thrown_away() {
    let server = server().await;
    for endpoint in ["/pause_generation", "/continue_generation"] {
        Mock::given(path(endpoint))
            .respond_with(ResponseTemplate::new(200))
            .mount(&server)
            .await;
    }
    let updated =
        ResponseTemplate::new(200).set_body_json(json!({ "success": true, "message": "" }));
    Mock::given(path("/update_weights_from_disk"))
        .respond_with(updated)
        .mount(&server)
        .await;
    // The process was replaced by one that serves what it was started with.
    generate(&server, answer(&[7], stop(), "default"), Some(1), 1).await;
    generate(&server, answer(&[8], stop(), "1"), None, 5).await;
    let pool = Arc::new(
        Pool::new(
            vec![address(&server)],
            PoolConfig {
                trust: Trust::Proven,
                ..config()
            },
        )
        .unwrap(),
    );
    let dir = crate::publish::tests::weights(&[("w", &[2, 2])]);
    Publisher::new(Arc::clone(&pool), PauseMode::Abort, Duration::from_secs(5))
        .publish(dir.path(), V1)
        .await
        .unwrap();
    assert_eq!(pool.sample(request("r")).await.unwrap().tokens, [8]);
    assert_eq!(pool.stats().num_unproven_tokens, 1);
}

#[tokio::test]
async fn nobody_is_asked_before_a_version_is_proven() {
    let server = server().await;
    generate(&server, answer(&[7], stop(), "1"), None, 5).await;
    let config = PoolConfig {
        trust: Trust::Proven,
        request_deadline: Duration::from_millis(200),
        ..config()
    };
    let pool = Pool::new(vec![address(&server)], config).unwrap();
    let error = pool.sample(request("r")).await.unwrap_err().to_string();
    assert!(error.contains("no weights were published"), "{error}");
    assert!(calls(&server, "/generate").await.is_empty());
}

#[tokio::test]
async fn a_pool_needs_different_addresses() {
    assert!(Pool::new(Vec::<Address>::new(), config()).is_err());
    let twice = vec![Address::new("h", 1), Address::new("h", 1)];
    assert!(
        Pool::new(twice, config())
            .err()
            .unwrap()
            .to_string()
            .contains("given twice")
    );
}

#[tokio::test]
async fn loads_and_infos_are_read_from_new_and_old_servers() {
    let server = MockServer::builder().start().await;
    let rank = json!({ "dp_rank": 0, "num_running_reqs": 3, "num_waiting_reqs": 1, "num_used_tokens": 5, "max_total_num_tokens": 100, "gen_throughput": 2.5, "new_member": {} });
    let loads = json!({ "version": "0.5.23", "loads": [rank.clone(), rank] });
    Mock::given(path("/v1/loads"))
        .respond_with(ResponseTemplate::new(200).set_body_json(loads))
        .mount(&server)
        .await;
    let info =
        json!({ "version": "0.5.17", "max_running_requests": 32, "max_total_tokens": 20000 });
    Mock::given(path("/get_server_info"))
        .respond_with(ResponseTemplate::new(200).set_body_json(info))
        .mount(&server)
        .await;
    Mock::given(path("/get_model_info"))
        .respond_with(ResponseTemplate::new(200).set_body_json(json!({ "model_path": "m" })))
        .mount(&server)
        .await;
    Mock::given(path("/get_weight_version"))
        .respond_with(ResponseTemplate::new(200).set_body_json(json!({ "weight_version": "w" })))
        .mount(&server)
        .await;
    let pool = Pool::new(vec![address(&server)], config()).unwrap();
    let server = pool.servers().next().unwrap();
    let loads = endpoint::v1_loads::v1_loads(server).await.unwrap();
    assert_eq!(
        (
            loads.num_running,
            loads.num_waiting,
            loads.num_total_tokens,
            loads.tokens_per_sec
        ),
        (6, 2, 200, 5.0)
    );
    let info = endpoint::server_info::server_info(server).await.unwrap();
    assert_eq!(
        (
            info.version(),
            info.max_running_requests(),
            info.max_total_tokens()
        ),
        (Some("0.5.17"), Some(32), Some(20000))
    );
    assert_eq!(
        endpoint::get_weight_version::get_weight_version(server)
            .await
            .unwrap(),
        "w"
    );
    assert_eq!(
        endpoint::weights_checker::weights_checker(server, Duration::from_secs(1))
            .await
            .unwrap(),
        None
    );
}

/// A server that counts what it is asked at once; requests take a while.
async fn counting() -> (Address, Arc<Mutex<Counts>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address::new("127.0.0.1", listener.local_addr().unwrap().port());
    let counts = Arc::new(Mutex::new(Counts::default()));
    let shared = counts.clone();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let counts = shared.clone();
            tokio::spawn(async move {
                let mut asked = String::new();
                let mut buffer = [0; 8192];
                loop {
                    let Ok(n) = socket.read(&mut buffer).await else {
                        return;
                    };
                    if n == 0 {
                        return;
                    }
                    asked.push_str(std::str::from_utf8(&buffer[..n]).unwrap());
                    let whole = asked.contains("\r\n\r\n")
                        && (asked.starts_with("GET") || asked.ends_with('}'));
                    if !whole {
                        continue;
                    }
                    let text = std::mem::take(&mut asked);
                    let body = if text.starts_with("POST /generate") {
                        {
                            let mut counts = lock(&counts);
                            counts.now += 1;
                            counts.most = counts.most.max(counts.now);
                            counts.under_update |= counts.updating;
                        }
                        tokio::time::sleep(Duration::from_millis(300)).await;
                        let mut counts = lock(&counts);
                        counts.now -= 1;
                        let label = counts.label.clone();
                        json!({ "text": "", "output_ids": [7], "meta_info": { "finish_reason": stop(),
                            "output_token_logprobs": [[-0.5, 7, null]], "weight_version": label } })
                    } else if text.starts_with("POST /update_weights_from_disk") {
                        lock(&counts).updating = true;
                        tokio::time::sleep(Duration::from_millis(300)).await;
                        let mut counts = lock(&counts);
                        counts.updating = false;
                        let at = text.find("weight_version\":\"").unwrap() + "weight_version\":\"".len();
                        counts.label = text[at..].split('"').next().unwrap().to_owned();
                        json!({ "success": true, "message": "" })
                    } else {
                        json!({ "weight_version": lock(&counts).label.clone(), "model_path": "m" })
                    }
                    .to_string();
                    let head = format!(
                        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
                        body.len()
                    );
                    if socket.write_all(head.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, counts)
}

#[derive(Debug, Default)]
struct Counts {
    now: usize,
    most: usize,
    updating: bool,
    /// A request came while weights were being loaded.
    under_update: bool,
    label: String,
}

#[tokio::test]
async fn f10_h14_nothing_is_asked_during_an_update_and_every_slot_is_filled_after_it() {
    let (address, counts) = counting().await;
    let config = PoolConfig {
        concurrency: 8,
        trust: Trust::Proven,
        ..config()
    };
    let pool = Arc::new(Pool::new(vec![address], config).unwrap());
    let publisher = Publisher::new(pool.clone(), PauseMode::Retract, Duration::from_secs(5));
    let dir = crate::publish::tests::weights(&[("w", &[2])]);
    // Asked before anything is served, and during the update.
    let rids: Vec<String> = (0..16).map(|i| i.to_string()).collect();
    let asking = futures::future::join_all(rids.iter().map(|rid| pool.sample(request(rid))));
    let publishing = publisher.publish(dir.path(), V1);
    let (answers, published) = futures::future::join(asking, publishing).await;
    published.unwrap();
    for answer in answers {
        assert_eq!(answer.unwrap().versions, [(V1, 1)]);
    }
    let counts = lock(&counts);
    assert!(!counts.under_update, "{counts:?}");
    assert_eq!(counts.most, 8, "back to full at once");
}
