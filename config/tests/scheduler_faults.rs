//! Wrong EndpointPickerConfigs, each with every fault that it has.

#![allow(clippy::unwrap_used, clippy::panic)]

use config::scheduler::read;

/// A document with these lines after its head.
fn document(rest: &str) -> String {
    format!("apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n{rest}")
}

/// A document of one plugin with its parameters.
fn plugin(kind: &str, parameters: &str) -> String {
    document(&format!("plugins: [{{type: {kind}, parameters: {{{parameters}}}}}]\n"))
}

#[test]
fn every_fault_is_told_with_its_place() {
    let with = |rest: &str| document(&format!("plugins: [{{type: queue-scorer}}]\n{rest}"));
    for (text, faults) in [
        (
            "apiVersion: llm-d.ai/v2\nkind: EndpointPicker\n".to_owned(),
            &[
                "f:1:13: apiVersion: found \"llm-d.ai/v2\", wanted llm-d.ai/v1, llm-d.ai/v1alpha1 or inference.networking.x-k8s.io/v1alpha1",
                "f:2:7: kind: found \"EndpointPicker\", wanted EndpointPickerConfig",
            ][..],
        ),
        (
            "plugins: []\n".to_owned(),
            &[
                "f:1:1: apiVersion: found nothing, wanted llm-d.ai/v1, llm-d.ai/v1alpha1 or inference.networking.x-k8s.io/v1alpha1",
                "f:1:1: kind: found nothing, wanted EndpointPickerConfig",
            ][..],
        ),
        ("[]\n".to_owned(), &["f:1:1: found a list, wanted keys and values"][..]),
        // A file that is one text may be a secret's, named by mistake: it is not repeated.
        ("hunter2\n".to_owned(), &["f:1:1: found a single value, wanted keys and values"][..]),
        (
            document("metadata: {name: x}\nplugins: 3\n"),
            &[
                "f:3:1: metadata: found an unknown field, wanted apiVersion, kind, featureGates, plugins, schedulingProfiles, dataLayer, flowControl, requestHandler, saturationDetector or parser",
                "f:4:10: plugins: found \"3\", wanted a list",
            ][..],
        ),
        (document("plugins: []\nplugins: []\n"), &["f:4:1: found \"plugins\", wanted each key once"][..]),
        (
            document("plugins: [{name: x}, {type: queue-scorer, weight: 2}, {type: queue-scorer}]\n"),
            &[
                "f:3:11: plugins[0].type: found nothing, wanted the type of a plugin",
                "f:3:43: plugins[1].weight: found an unknown field, wanted type, name or parameters",
                "f:3:55: plugins[2]: found queue-scorer beside queue-scorer, wanted one, with the sum of their weights",
                "f:3:62: plugins[2].type: found \"queue-scorer\", wanted each name of a plugin once",
            ][..],
        ),
        (
            document("plugins: [{type: queue-scorr}, {type: my-own}, {type: 5}]\n"),
            &[
                "f:3:18: plugins[0].type: found \"queue-scorr\", wanted queue-scorer",
                "f:3:39: plugins[1].type: found \"my-own\", wanted the type of a plugin that this router has",
                "f:3:55: plugins[2].type: found \"5\", wanted a text",
            ][..],
        ),
        (
            document(
                "plugins: [{type: load-aware-scorer}, {type: context-length-aware}, {type: precise-prefix-cache-producer}]\n",
            ),
            &[
                "f:3:18: plugins[0].type: found load-aware-scorer, which this router lacks, wanted queue-scorer, the nearest",
                "f:3:45: plugins[1].type: found context-length-aware, which this router lacks, wanted none: a pool for each length",
                "f:3:75: plugins[2].type: found precise-prefix-cache-producer, which this router lacks, wanted approx-prefix-cache-producer, the nearest",
            ][..],
        ),
        (
            document("plugins: [{type: queue-scorer, parameters: {threshold: 5}}]\n"),
            &["f:3:45: plugins[0].parameters.threshold: found an unknown field, wanted none"][..],
        ),
        (
            plugin(
                "prefix-cache-scorer",
                "matchLengthWeight: 1.5, matchLengthScaleTokens: 0, prefixMatchInfoProducerName: precise-prefix-cache-producer, hashBlockSize: 5",
            ),
            &[
                "f:3:71: plugins[0].parameters.matchLengthWeight: found \"1.5\", wanted a number from 0 to 1",
                "f:3:100: plugins[0].parameters.matchLengthScaleTokens: found \"0\", wanted an integer from 1 to 4294967295",
                "f:3:132: plugins[0].parameters.prefixMatchInfoProducerName: found \"precise-prefix-cache-producer\", wanted the name of one whose type is approx-prefix-cache-producer",
                "f:3:163: plugins[0].parameters.hashBlockSize: found an unknown field, wanted prefixMatchInfoProducerName, matchLengthWeight or matchLengthScaleTokens",
            ][..],
        ),
        (
            plugin("prefix-cache-scorer", "matchLengthWeight: '0.5', matchLengthScaleTokens: 1.5"),
            &[
                "f:3:71: plugins[0].parameters.matchLengthWeight: found \"0.5\", wanted a number from 0 to 1",
                "f:3:102: plugins[0].parameters.matchLengthScaleTokens: found \"1.5\", wanted an integer from 1 to 4294967295",
            ][..],
        ),
        (
            plugin("active-request-scorer", "idleThreshold: -1, maxBusyScore: .inf"),
            &[
                "f:3:69: plugins[0].parameters.idleThreshold: found \"-1\", wanted an integer from 0 to 4294967295",
                "f:3:87: plugins[0].parameters.maxBusyScore: found \".inf\", wanted a number from 0 to 1",
            ][..],
        ),
        (
            plugin("token-load-scorer", "queueThresholdTokens: many"),
            &["f:3:72: plugins[0].parameters.queueThresholdTokens: found \"many\", wanted an integer"][..],
        ),
        (
            plugin("session-affinity-scorer", ""),
            &[
                "f:3:55: plugins[0].parameters.strategy: found nothing, wanted session_id, with which clients send x-session-id",
            ][..],
        ),
        (
            plugin(
                "session-affinity-scorer",
                "strategy: session_id, profileName: decode, sessionIdConfig: {evictionTtlSeconds: 60, sources: [{header: x-user}, {attribute: agent-identity}]}",
            ),
            &[
                "f:3:91: plugins[0].parameters.profileName: found \"decode\", wanted none: there is one profile",
                "f:3:137: plugins[0].parameters.sessionIdConfig.evictionTtlSeconds: found \"60\", wanted 300",
                "f:3:160: plugins[0].parameters.sessionIdConfig.sources[0].header: found \"x-user\", wanted x-session-id",
                "f:3:169: plugins[0].parameters.sessionIdConfig.sources[1]: found keys and values, wanted one source",
                "f:3:181: plugins[0].parameters.sessionIdConfig.sources[1].attribute: found \"agent-identity\", wanted a header: x-session-id",
            ][..],
        ),
        (
            plugin(
                "prefix-cache-affinity-filter",
                "affinityThreshold: 80, explorationProbability: 0.1, ttftSource: latencyPredictor, peakPrefillThroughput: 0",
            ),
            &[
                "f:3:11: plugins[0]: found no scorer with a weight behind it, wanted one that ranks, such as token-load-scorer",
                "f:3:80: plugins[0].parameters.affinityThreshold: found \"80\", wanted a number from 0 to 1",
                "f:3:108: plugins[0].parameters.explorationProbability: found \"0.1\", wanted 0",
                "f:3:125: plugins[0].parameters.ttftSource: found \"latencyPredictor\", wanted prefillThroughput",
                "f:3:166: plugins[0].parameters.peakPrefillThroughput: found \"0\", wanted a number above 0, or maxTTFTPenaltyMs 0",
            ][..],
        ),
        (
            plugin(
                "approx-prefix-cache-producer",
                "autoTune: yes, blockSizeTokens: 0, blockSize: 256, maxPrefixTokensToMatch: -1, lruCapacityPerServer: 0",
            ),
            &[
                "f:3:71: plugins[0].parameters.autoTune: found \"yes\", wanted true or false",
                "f:3:93: plugins[0].parameters.blockSizeTokens: found \"0\", wanted an integer from 1 to 65536",
                "f:3:107: plugins[0].parameters.blockSize: found \"256\", wanted blockSizeTokens, which is in tokens and not in characters",
                "f:3:136: plugins[0].parameters.maxPrefixTokensToMatch: found \"-1\", wanted an integer of at least 0",
                "f:3:162: plugins[0].parameters.lruCapacityPerServer: found \"0\", wanted an integer from 1 to 67108863",
            ][..],
        ),
        (
            plugin("inflight-load-producer", "addEstimatedOutputTokens: true, outputRatio: -1"),
            &[
                "f:3:81: plugins[0].parameters.addEstimatedOutputTokens: found \"true\", wanted false: tokens of a prompt alone are counted",
                "f:3:100: plugins[0].parameters.outputRatio: found \"-1\", wanted a number of at least 0",
            ][..],
        ),
        (
            plugin(
                "token-producer",
                "vllm: {url: 'http://localhost:8000'}, estimate: {image: {mode: static}}",
            ),
            &[
                "f:3:53: plugins[0].parameters.vllm: found keys and values, wanted estimate, the only backend here",
                "f:3:103: plugins[0].parameters.estimate.image: found keys and values, wanted none: media are counted one way",
            ][..],
        ),
        (
            plugin("metrics-data-source", "scheme: https, path: /stats, port: 9000, interval: 1s"),
            &[
                "f:3:60: plugins[0].parameters.scheme: found \"https\", wanted http",
                "f:3:73: plugins[0].parameters.path: found \"/stats\", wanted /metrics",
                "f:3:87: plugins[0].parameters.port: found \"9000\", wanted none: it is the endpoint's",
                "f:3:103: plugins[0].parameters.interval: found \"1s\", wanted none: it is the pool's load.scrape_interval or models_interval",
            ][..],
        ),
        (
            plugin(
                "core-metrics-extractor",
                "defaultEngine: atom, engineLabelKey: engine, engineConfigs: []",
            ),
            &[
                "f:3:70: plugins[0].parameters.defaultEngine: found \"atom\", wanted vllm, sglang, trtllm-serve, triton-tensorrt-llm, triton or llama.cpp",
                "f:3:92: plugins[0].parameters.engineLabelKey: found \"engine\", wanted llm-d.ai/engine-type: a pool has one engine",
                "f:3:115: plugins[0].parameters.engineConfigs: found a list, wanted none: other names of series are the pool's metrics",
            ][..],
        ),
        (
            plugin(
                "utilization-detector",
                "queueDepthThreshold: 10, kvCacheUtilThreshold: 0.9, metricsStalenessThreshold: 2s, headroom: 0.2",
            ),
            &[
                "f:3:74: plugins[0].parameters.queueDepthThreshold: found \"10\", wanted 5",
                "f:3:100: plugins[0].parameters.kvCacheUtilThreshold: found \"0.9\", wanted 0.8",
                "f:3:132: plugins[0].parameters.metricsStalenessThreshold: found \"2s\", wanted 200ms",
                "f:3:146: plugins[0].parameters.headroom: found \"0.2\", wanted 0",
            ][..],
        ),
        (
            plugin("max-score-picker", "maxNumOfEndpoints: 0"),
            &[
                "f:3:68: plugins[0].parameters.maxNumOfEndpoints: found \"0\", wanted an integer of at least 1",
            ][..],
        ),
        (
            with(
                "schedulingProfiles: [{plugins: [{pluginRef: queue}, {weight: 1}]}, {name: decode, plugins: []}]\n",
            ),
            &[
                "f:4:22: schedulingProfiles[0].name: found nothing, wanted the name of the profile",
                "f:4:45: schedulingProfiles[0].plugins[0].pluginRef: found \"queue\", wanted the name of a configured plugin",
                "f:4:53: schedulingProfiles[0].plugins[1].pluginRef: found nothing, wanted the name of a configured plugin",
                "f:4:68: schedulingProfiles[1]: found a second profile, wanted one: prefill and decode are not told apart here",
            ][..],
        ),
        (
            with(
                "schedulingProfiles: [{name: p, plugins: [{pluginRef: queue-scorer, weight: -1}, {pluginRef: queue-scorer, weight: 1}]}]\n",
            ),
            &[
                "f:4:76: schedulingProfiles[0].plugins[0].weight: found \"-1\", wanted a number from 0 to 1000000",
                "f:4:81: schedulingProfiles[0].plugins[1]: found queue-scorer beside queue-scorer, wanted one, with the sum of their weights",
            ][..],
        ),
        (
            document(
                "plugins: [{type: prefix-cache-affinity-filter}, {type: max-score-picker}, {type: random-picker}]\n",
            ),
            &[
                "f:3:11: plugins[0]: found random-picker behind it, wanted one that ranks, such as token-load-scorer",
                "f:3:75: plugins[2]: found random-picker beside max-score-picker, wanted one",
            ][..],
        ),
        (
            document(
                "plugins: [{type: approx-prefix-cache-producer}, {name: b, type: approx-prefix-cache-producer}]\n",
            ),
            &["f:3:49: plugins[1]: found a second approx-prefix-cache-producer, wanted one"][..],
        ),
        (
            with("featureGates: [flowControl, dataLayer, flowControl=yes]\n"),
            &[
                "f:4:16: featureGates[0]: found \"flowControl\", wanted it off: this router holds no request back",
                "f:4:29: featureGates[1]: found \"dataLayer\", wanted flowControl or haPopulateNonLeaderDatastore, perhaps with =true or =false",
                "f:4:40: featureGates[2]: found \"flowControl=yes\", wanted flowControl or haPopulateNonLeaderDatastore, perhaps with =true or =false",
            ][..],
        ),
        (
            with(
                "dataLayer: {injectDefaults: false, discovery: {endpoints: {pluginRef: file}}, crossReplicaSyncInterval: 1s}\n",
            ),
            &[
                "f:4:29: dataLayer.injectDefaults: found \"false\", wanted true: loads are always read",
                "f:4:47: dataLayer.discovery: found keys and values, wanted none: nearest is the router's own pools[].discovery.file",
                "f:4:105: dataLayer.crossReplicaSyncInterval: found \"1s\", wanted none: this router shares nothing with its peers",
            ][..],
        ),
        (
            with("dataLayer: {sources: [{pluginRef: queue-scorer, extractors: [{pluginRef: none}]}]}\n"),
            &[
                "f:4:35: dataLayer.sources[0].pluginRef: found \"queue-scorer\", a scorer, wanted a data source",
                "f:4:74: dataLayer.sources[0].extractors[0].pluginRef: found \"none\", wanted the name of a configured plugin",
            ][..],
        ),
        (
            with(
                "flowControl: {maxBytes: 1Gi, enableEviction: true, saturationDetector: {pluginRef: queue-scorer}}\n",
            ),
            &[
                "f:4:25: flowControl.maxBytes: found \"1Gi\", wanted none: this router holds no request back",
                "f:4:46: flowControl.enableEviction: found \"true\", wanted false: this router evicts no request",
                "f:4:84: flowControl.saturationDetector.pluginRef: found \"queue-scorer\", a scorer, wanted a saturation detector",
            ][..],
        ),
        (
            with(
                "requestHandler: {parsers: [{pluginRef: vllmgrpc-parser}, openai-parser], propagatePriority: true}\n",
            ),
            &[
                "f:4:40: requestHandler.parsers[0].pluginRef: found \"vllmgrpc-parser\", wanted the name of a configured plugin",
                "f:4:58: requestHandler.parsers[1]: found \"openai-parser\", wanted keys and values",
                "f:4:93: requestHandler.propagatePriority: found true, wanted false: requests have no priority here",
            ][..],
        ),
        (
            document(&format!(
                "plugins: [{}]\n",
                (0..257)
                    .map(|place| format!("{{type: openai-parser, name: p{place}}}"))
                    .collect::<Vec<_>>()
                    .join(", ")
            )),
            &["f:3:10: plugins: found 257, wanted at most 256 of them"][..],
        ),
    ] {
        assert_eq!(read("f", &text).unwrap_err().to_string(), faults.join("\n"), "{text}");
    }
}
