//! The filters that commands share, as options of the command line and as parameters of the API.

use clap::Args;

#[derive(Debug, Args)]
pub(in crate::cli) struct FilterOptions {
    /// Only objects of this cluster (repeatable)
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) cluster: Vec<String>,
    /// Only objects in this namespace
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Objects in all namespaces, even with -n; this is the default
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Only objects with these labels, in kubectl's syntax: app=cart,tier!=web,env in (a,b)
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub(super) selector: Option<String>,
    /// Another filter of the API, such as identity=131331 or cidr=10.2.0.0/16 (repeatable)
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_filter)]
    filter: Vec<(String, String)>,
}

impl FilterOptions {
    /// Returns the only namespace, if one is selected.
    pub(super) fn namespace(&self) -> Option<&String> {
        self.namespace.as_ref().filter(|_| !self.all_namespaces)
    }

    /// Returns the filters as query parameters of the API.
    pub(super) fn query(&self) -> Vec<(String, String)> {
        let named = |name: &'static str| move |value: &String| (name.to_owned(), value.clone());
        let mut query = self.filter.clone();
        query.extend(self.cluster.iter().map(named("cluster")));
        query.extend(self.namespace().map(named("namespace")));
        query.extend(self.selector.iter().map(named("labelSelector")));
        query
    }
}

fn parse_filter(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}
